"""A command of ``llmk`` that is called in a process of its own, as users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.kernel.interpreter import PYTHON

TIMEOUT = 60.0
"""Seconds that a command may take."""
_ABSENT = 'raise ImportError("torch takes seconds to import, and {what} must be quick")\n'


@dataclass(frozen=True, slots=True)
class Called:
    """What a process left: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    def check_no_traceback(self, what: str) -> None:
        """Raises ``AssertionError`` if the command ended with an exception that it should have named in words."""
        bad = next((sign for sign in ("Traceback", "Exception ignored", "internal error:") if sign in self.err), "")
        assert not bad, f"{what}: it ended with {self.code} and this on standard error:\n{self.err[-1500:]}"
        assert self.code >= 0, f"{what}: it died of signal {-self.code}\n{self.err[-1500:]}"

    def check_message(self, what: str) -> None:
        """Raises ``AssertionError`` unless standard error has one message, as llmk writes errors."""
        said = [line for line in self.err.splitlines() if line.strip()]
        firsts = [line for line in said if not line.startswith(" ")]
        assert firsts, f"{what}: it ended with {self.code}, and standard error is empty"
        assert len(firsts) == 1, (
            f"{what}: standard error has {len(firsts)} messages instead of one:\n{self.err[-1500:]}"
        )


def call(
    name: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    is_read: bool = True,
) -> Called:
    """Calls ``llmk NAME ARGUMENTS`` in a folder, without a terminal. With ``is_read`` false, what reads its output has
    gone before it starts. Raises ``AssertionError`` if it does not end."""
    command = [*PYTHON, "-m", "llmk", *name.split(), *arguments]
    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if not is_read:
        streams["stdout"] = _closed_pipe()
    given = {**os.environ, **own, **(environ or {})}
    try:
        done = subprocess.run(command, cwd=folder, env=given, timeout=TIMEOUT, **streams)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"llmk {name} {' '.join(arguments)} did not end within {TIMEOUT:g} s") from None
    finally:
        if not is_read:
            os.close(streams["stdout"])
    return Called(done.returncode, (done.stdout or b"").decode(errors="replace"), done.stderr.decode(errors="replace"))


def _closed_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


@contextmanager
def without_torch(what: str) -> Iterator[Mapping[str, str]]:
    """The environment of a process in which torch can't be imported."""
    with TemporaryDirectory(prefix="llmk-") as folder:
        (Path(folder) / "torch.py").write_text(_ABSENT.format(what=what))
        yield {"PYTHONPATH": os.pathsep.join((folder, *(path for path in sys.path if path)))}
