"""What runs on a node: an actor that starts a rank's process, passes on what it writes, and says how it ended.

It travels to the node by value, and imports nothing of llmk, so that a node where llmk is missing can say so.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

_NOT_OURS = ("OMP_NUM_THREADS",)
"""What Ray sets for its own workers: the rank's platform decides."""


class Warden:
    """One rank's. The process ends with this one: its standard input is closed then."""

    def where(self) -> dict[str, object]:
        """The name and address of the node, and the ids of the devices that Ray gave to this actor, by resource."""
        ray: Any = import_module("ray")
        context = ray.get_runtime_context()
        ids = {name: list(map(str, given)) for name, given in context.get_accelerator_ids().items()}
        return {
            "address": ray.util.get_node_ip_address(),
            "host": socket.gethostname(),
            "devices": ids,
        }

    def run(self, arguments: Sequence[str], data: bytes, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Runs the process; yields ``("said", line)`` for each line that it writes, and ``("ended", how)``."""
        own = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        process = subprocess.Popen(
            (sys.executable, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=own | environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=_give, args=(process, data), daemon=True).start()
        threading.Thread(target=_end_group, args=(process,), daemon=True).start()
        for line in process.stdout:
            yield "said", line.decode(errors="replace").rstrip("\n")
        yield "ended", _ending(process.wait())


def _give(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Writes to the process's standard input, which stays open."""
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except BrokenPipeError:
        return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what the process left when it ended, which may have its output open."""
    process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"
