"""A watch over plugins' code while it is imported and asked: what hangs is ended, and what takes the process with it is
named.

A process of its own watches, since nothing in this one runs any more once a plugin has aborted it, or loops in C. What
takes too long raises TimeoutError where it stands, so that its plugin is left out like any that raises. Where that is
not possible (another thread than the main one, code that lets nothing interrupt it), the process is killed.
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
"""How many times ``plugins.import_seconds`` specs and hooks may take; and what specs name, which may import torch."""
_GRACE = 5.0
"""Seconds that code has to let an exception pass."""


class TookTooLong(BaseException):
    """Raised in code that takes too long. Not an Exception, which a loop may catch."""


class _Watch:
    """The process that watches, and the file that it reads: writing that wakes nobody."""

    def __init__(self) -> None:
        self.uses = 0
        self._ids = count()
        self._running: dict[int, dict[str, object]] = {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  kept as long as the watch
        script, file = str(Path(__file__).with_name("watchdog_process.py")), self._file.fileno()
        # A process that ignores SIGTERM is an engine's, which its parent ends: no crash, if that is gone as well.
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

    def begin(self, what: str, hint: str, seconds: float) -> int:
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
            raise TookTooLong("it was not over in time")


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_lock = threading.RLock()
_current: _Watch | None = None
_seconds = 60.0


@contextlib.contextmanager
def watching(seconds: float | None = None) -> Iterator[None]:
    """Keeps one watch for all that is :func:`watched` within. Where a watch is kept already, that goes on.

    ``seconds`` are ``plugins.import_seconds``; where they are left out, those that were given last.
    """
    global _current, _seconds
    with _lock:
        _seconds = _seconds if seconds is None else seconds
        if _current is None and all(BARE_PYTHON) and hasattr(signal, "SIGALRM"):
            with contextlib.suppress(OSError):  # no process can be had: then nobody watches
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
    """Code of a plugin runs within. Raises TimeoutError where it doesn't end in ``times`` times the watch's seconds."""
    with watching():
        watch = _current
        if watch is None:
            yield
            return
        id = watch.begin(what, hint, seconds := times * _seconds)
        try:
            yield
        except TookTooLong as error:
            raise TimeoutError(f"not over after {seconds:g} s") from error
        finally:
            watch.end(id)
