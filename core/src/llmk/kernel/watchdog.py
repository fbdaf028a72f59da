"""A watchdog for plugins' code while it is imported and its hooks are called: code that hangs is interrupted, and code
that crashes the process is named in the log.

The watchdog is a separate process, since nothing in this one runs any more when a plugin aborts it or loops in C. Code
that takes too long gets a TimeoutError, so that its plugin is left out like any that raises. If it can't be interrupted
(outside of the main thread, or in code that does not return to Python), the process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FrameType

from llmk.kernel.interpreter import BARE_PYTHON

SPECS, MODULES = 1, 10
"""Time limits, as multiples of ``plugins.import_seconds``: of spec modules and hooks, and of the modules that specs
name, which may import torch."""
_GRACE = 5.0
"""Seconds between interrupting code and killing the process."""


class TookTooLong(BaseException):
    """Raised in code that takes too long. Not a subclass of Exception, which the code may catch."""


class _Watch:
    """The watchdog process, and the file that it polls; unlike a pipe, writing to it wakes no process."""

    def __init__(self) -> None:
        self.uses = 0
        self._ids = count()
        self._running: dict[int, dict[str, object]] = {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  kept as long as the watchdog
        script, file = str(Path(__file__).with_name("watchdog_process.py")), self._file.fileno()
        # A process that ignores SIGTERM is an engine's, which ends with its parent: that is not a crash.
        parent = os.getppid() if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN else 0
        command = [*BARE_PYTHON, script, *map(str, (os.getpid(), file, _GRACE, parent))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, pass_fds=[file]
        )
        self._signals = _is_main_thread() and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        if self._signals:
            signal.signal(signal.SIGALRM, self._late)

    def close(self) -> None:
        if self._signals:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._process.kill()
        self._process.communicate()
        self._file.close()

    def start(self, what: str, hint: str, seconds: float) -> int:
        id, until = next(self._ids), time.monotonic() + seconds
        signals = self._signals and _is_main_thread()
        self._running[id] = {
            "id": id, "what": what, "hint": hint, "seconds": seconds, "until": until, "signals": signals
        }  # fmt: skip
        self._write()
        return id

    def end(self, id: int) -> None:
        del self._running[id]
        self._write()

    def _write(self) -> None:
        os.pwrite(self._file.fileno(), json.dumps(list(self._running.values())).encode() + b"\n", 0)

    def _late(self, number: int, frame: FrameType | None) -> None:
        if any(mark["signals"] for mark in self._running.values()):
            raise TookTooLong("time limit exceeded")


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_lock = threading.RLock()
_current: _Watch | None = None
_seconds = 60.0


@contextlib.contextmanager
def watching(seconds: float | None = None) -> Iterator[None]:
    """Uses one watchdog process for all code that is :func:`watched` within. Nested uses share it.

    ``seconds`` is ``plugins.import_seconds``; by default, the last value that was passed.
    """
    global _current, _seconds
    with _lock:
        _seconds = _seconds if seconds is None else seconds
        if _current is None and all(BARE_PYTHON) and hasattr(signal, "SIGALRM"):
            with contextlib.suppress(OSError):  # no process can be started: plugins are not watched
                _current = _Watch()
        watch = _current
        if watch is not None:
            watch.uses += 1
    try:
        yield
    finally:
        with _lock:
            if watch is not None:
                watch.uses -= 1
                if not watch.uses:
                    _current = None
                    watch.close()


@contextlib.contextmanager
def watched(what: str, hint: str, times: int = SPECS) -> Iterator[None]:
    """A context for code of a plugin, with a time limit of ``times`` times the watchdog's seconds, beyond which it
    raises TimeoutError. ``what`` and ``hint`` are for the message."""
    with watching():
        watch = _current
        if watch is None:
            yield
            return
        id = watch.start(what, hint, seconds := times * _seconds)
        try:
            yield
        except TookTooLong as error:
            raise TimeoutError(f"not finished after {seconds:g} s") from error
        finally:
            watch.end(id)
