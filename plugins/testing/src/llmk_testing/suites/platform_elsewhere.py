"""Machines that are not here: what their files have besides what a probe looks for, and lies about this machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

MORE_LINES: Mapping[str, tuple[str, ...]] = {
    "/proc/meminfo": (
        "SwapCached:            4 kB",
        "SwapTotal:       8388604 kB",
        "SwapFree:        8388600 kB",
        "Zswap:                 0 kB",
        "CommitLimit:    24590220 kB",
        "Committed_AS:     996132 kB",
        "VmallocTotal:   34359738367 kB",
        "HugePages_Total:       0",
        "Hugepagesize:       2048 kB",
        "DirectMap1G:    15728640 kB",
    ),
    "/proc/self/status": (
        "VmSwap:\t       4 kB",
        "Threads:\t17",
        "Mems_allowed:\t00000003",
        "Mems_allowed_list:\t0-1",
        "voluntary_ctxt_switches:\t150",
    ),
}
"""Lines that Linux has in these files, and that say nothing of a device and its memory."""
_MUCH = 1 << 50
_UNLIMITED: Mapping[str, Mapping[str, str]] = {
    "/sys/fs/cgroup": {
        "memory.max": "max\n",
        "memory.high": "max\n",
        "memory.current": f"{_MUCH}\n",
        "memory.stat": f"anon 4096\nfile {_MUCH}\ninactive_file 4096\n",
    },
    "/sys/fs/cgroup/memory": {
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.usage_in_bytes": f"{_MUCH}\n",
    },
}
"""Files of control groups of the second and of the first version, which use much, and have no limit."""
_PROCESSORS = 977
_OF_MACHINE = ("/proc", "/sys")
_watched: list[tuple[str, set[str]]] = []
"""The roots of machines that are asked about now, and what was opened below others."""
_hooked: list[bool] = []


def without_limit(files: Mapping[str, str | bytes]) -> Mapping[str, str | bytes]:
    """Files of the control groups that a process is in, and those above, as far as the machine has none of a limit."""
    found: dict[str, str | bytes] = {}
    text = files.get("/proc/self/cgroup", "")
    for line in text.splitlines() if isinstance(text, str) else ():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        is_first = "memory" in controllers.split(",")
        if not is_first and (number != "0" or controllers):
            continue
        base = "/sys/fs/cgroup/memory" if is_first else "/sys/fs/cgroup"
        for folder in accumulate(filter(None, path.split("/")), "{}/{}".format, initial=base):
            own = {f"{folder}/{name}": value for name, value in _UNLIMITED[base].items()}
            found |= {} if own.keys() & files.keys() else own
    return found


@contextmanager
def elsewhere(root: Path, environ: Mapping[str, str]) -> Iterator[set[str]]:
    """Within, this process seems to run on another machine, with further variables ``environ``. Yields the files about
    this machine that are opened, and the programs that are started."""
    _hook()
    opened: set[str] = set()
    with ExitStack() as lies:
        for owner, name, value in _lies():
            if hasattr(owner, name):
                lies.enter_context(patch.object(owner, name, value))
        lies.enter_context(patch.dict(os.environ, environ))
        _watched.append((str(root), opened))
        lies.callback(_watched.pop)
        yield opened


def _lies() -> Iterator[tuple[Any, str, Any]]:
    system = os.uname()
    for name in ("cpu_count", "process_cpu_count"):
        yield os, name, lambda: _PROCESSORS
    yield os, "sched_getaffinity", lambda process: set(range(_PROCESSORS))
    yield os, "sysconf", lambda name: _PROCESSORS
    yield os, "uname", lambda: os.uname_result(("Other", "other", *system[2:4], "other"))
    for name in ("machine", "system", "processor", "node", "release"):
        yield platform, name, lambda: "other"
    if psutil := sys.modules.get("psutil"):
        memory = psutil.virtual_memory()
        yield psutil, "cpu_count", lambda logical=True: _PROCESSORS
        yield psutil, "virtual_memory", lambda: memory._replace(total=_PROCESSORS, available=_PROCESSORS)


def _hook() -> None:
    """Hooks can't be removed, so there is one, which does nothing while nothing is watched."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_audit)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _watched:
        return
    root, opened = _watched[-1]
    if event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(args[0])
        if path.startswith(_OF_MACHINE) and not path.startswith(root):
            opened.add(path)
    elif event in ("subprocess.Popen", "os.system"):
        opened.add(f"the program {args[0]!r}")
