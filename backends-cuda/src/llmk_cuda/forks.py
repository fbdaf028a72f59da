"""Runs functions in forked processes, for their effect on files."""

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
"""Timeout in seconds of a process: a lock that another thread held at the fork is never released, so it may hang."""

_PAUSE = 0.002


class Forks:
    """Runs functions in forked processes, at most one per CPU at a time.

    A fork has this process's memory, so nothing is imported or passed; it must not use devices. Results and errors are
    not reported: callers check for the effects.
    """

    def __init__(self, most: int = os.cpu_count() or 1, limit: float = LIMIT) -> None:
        self._most = most
        self._limit = limit
        self._queue: deque[Callable[[], object]] = deque()
        self._ends: dict[int, float] = {}
        """The deadline of each running process."""

    def submit(self, run: Callable[[], object]) -> None:
        """Runs it as soon as a process may be started."""
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
            # The warning about forks in multi-threaded processes: the work takes no lock of other threads, and has a
            # timeout.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process:
            self._ends[process] = time.monotonic() + self._limit
            return
        try:
            # The parent's garbage may contain graphs and events, which this process must not destroy.
            gc.disable()
            os.setpgid(0, 0)  # so that its children, such as an assembler, can be killed with it
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
                run()
        finally:
            os._exit(0)


def _has_ended(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:  # with SIGCHLD ignored, there is no child to wait for
        return True
