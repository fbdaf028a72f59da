"""Starts ranks on this machine, each by a command of the user's, such as ``["taskset", "-c", "{place}"]``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from llmk.api import ConfigError, LaunchContext, RankPlace, RankProcess

from .specs import Options


class Prefixed:
    """Follows ``llmk.api.RankLauncher``."""

    address = ""
    """Empty: all places are on this machine, where ranks reach each other without an address."""

    def __init__(self, context: LaunchContext) -> None:
        self._context = context
        self._prefix = Options.model_validate(dict(context.options)).prefix
        self._ranks: list[_Rank] = []

    def place(self) -> Sequence[RankPlace]:
        """A place for each rank. ``index`` is that of its device among those that the ranks have. A launcher that
        shares devices with others raises ``NotEnoughResources`` here."""
        query = self._context.query
        return [RankPlace(index=index) for index in range(query.tensor * query.pipeline)]

    def start(self, place: int, process: RankProcess) -> None:
        """Starts a process, and returns before it has read its input. It inherits standard output and error, so that
        ``context.said`` is not needed."""
        prefix = [word.replace("{place}", str(place)) for word in self._prefix]
        try:
            child = subprocess.Popen(
                [*prefix, sys.executable, *process.arguments], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"{prefix[:1]} can't be started: {error.strerror}", hint="see [plugin.acme]") from error
        self._ranks.append(_Rank(place, child, process.input, self._context))

    def kill(self) -> None:
        """Kills all processes, without waiting."""
        for rank in list(self._ranks):
            rank.kill()

    def close(self) -> None:
        """Kills, and waits until they have ended, so that the devices are free. Nothing else was reserved."""
        self.kill()
        for rank in self._ranks:
            rank.join()


class _Rank:
    """A process, a thread that writes its input, and one that waits for its end."""

    def __init__(self, place: int, child: subprocess.Popen[bytes], data: bytes, context: LaunchContext) -> None:
        self._place, self._child, self._context = place, child, context
        self._lock = threading.Lock()
        self._was_killed = self._is_reaped = False
        threading.Thread(target=self._write, args=(data,), daemon=True).start()
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def kill(self) -> None:
        """Kills its whole group, which has what it started, unless it ended before. Its end is not reported then."""
        with self._lock:
            if not self._is_reaped:
                self._was_killed = True
                self._kill_group()

    def join(self) -> None:
        """Waits for the end."""
        self._waiter.join()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _write(self, data: bytes) -> None:
        """The pipe stays open behind the input: the process ends when it is closed, as it is when this one ends."""
        assert self._child.stdin is not None
        rest = memoryview(data)
        with suppress(BrokenPipeError):  # the process has ended, which is reported
            while rest:
                rest = rest[self._child.stdin.write(rest) :]

    def _wait(self) -> None:
        """Until the process is reaped, its number can't be that of another group."""
        os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._kill_group()  # what it started and left
            code = self._child.wait()
            self._is_reaped = True
        if not self._was_killed:
            how = f"ended with exit code {code}" if code >= 0 else f"was killed by {_name(-code)}"
            self._context.ended(self._place, how)


def _name(number: int) -> str:
    """A signal's name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
