"""Work for its effects on files alone, in processes forked for it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable

LIMIT = 120.0
"""Seconds after which a process is taken for stuck: a lock that another thread held at the fork is never released."""

_PAUSE = 0.002


class Forks:
    """Runs functions in processes of their own, as many at a time as there are processors.

    A fork has all that this process has, so that nothing is imported or handed over; it must leave devices alone. What
    becomes of a function is not told: who needs its effects looks whether they are there.
    """

    def __init__(self, most: int = os.cpu_count() or 1, limit: float = LIMIT) -> None:
        self._most = most
        self._limit = limit
        self._queue: deque[Callable[[], object]] = deque()
        self._ends: dict[int, float] = {}
        """When each running process is taken for stuck."""

    def submit(self, run: Callable[[], object]) -> None:
        """Runs it as soon as there is room."""
        self._queue.append(run)
        self._advance()

    def join(self) -> None:
        """Waits until all have ended."""
        while self._queue or self._ends:
            self._advance()
            time.sleep(_PAUSE)

    def _advance(self) -> None:
        for process, end in list(self._ends.items()):
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
            if _has_ended(process):
                del self._ends[process]
        while self._queue and len(self._ends) < self._most:
            self._start(self._queue.popleft())

    def _start(self, run: Callable[[], object]) -> None:
        with warnings.catch_warnings():
            # Of forks beside other threads: the work takes none of their locks, and is not waited for forever.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process:
            self._ends[process] = time.monotonic() + self._limit
            return
        try:
            # Garbage of the parent's may be graphs and events, which are not this process's to end.
            gc.disable()
            os.setpgid(0, 0)  # so that what it starts, as an assembler, ends with it
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
                run()
        finally:
            os._exit(0)


def _has_ended(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:  # who ignores the signal of children's ends has none to wait for
        return True
