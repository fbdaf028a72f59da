"""Starts ranks on this machine, on devices that several engines share: each leases those that its ranks need.

A lease is a lock on a file, which the kernel takes back when the engine ends, no matter how. Devices are in islands,
such as those that a switch connects: an engine gets as few islands as it can, and of these the one that fits best.

One thread waits for all processes at once: for room in their inputs, for their lines, and for their ends.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from llmk.api import LaunchContext, NotEnoughResources, RankPlace, RankProcess

from .swift_options import Options

_PIPE = 1 << 20
"""Read at once: more than a pipe holds."""


class LeasedDevices:
    """Follows ``llmk.api.RankLauncher``."""

    address = ""

    def __init__(self, context: LaunchContext) -> None:
        options = Options.model_validate(dict(context.options))
        self._context = context
        self._folder = Path(options.lease_folder)
        self._islands = options.islands
        if not self._islands and not context.query.platform.shared_device:
            self._islands = [[str(index) for index in range(context.query.platform.num_devices)]]
        self._leases: dict[str, int] = {}
        """The open file of each device that is leased."""
        self._lock = threading.Lock()
        self._ranks: dict[int, _Rank] = {}
        self._is_killed = self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ, self._watch_new)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def place(self) -> Sequence[RankPlace]:
        """Leases a device for each rank, except where ranks share the only one."""
        wanted = self._context.query.tensor * self._context.query.pipeline
        if not self._islands:
            return [RankPlace(index=index) for index in range(wanted)]
        self._folder.mkdir(parents=True, exist_ok=True)
        chosen: list[str] = []
        gate = os.open(self._folder / "gate", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)  # so that two engines that start don't see each other's attempts
            free = [[device for device in island if self._lease(device)] for island in self._islands]
            chosen = _choose(free, wanted)
        finally:
            for device in set(self._leases) - set(chosen):
                os.close(self._leases.pop(device))
            os.close(gate)
        if not chosen:
            counts = ", ".join(
                f"{len(left)} of {len(island)}" for left, island in zip(free, self._islands, strict=False)
            )
            raise NotEnoughResources(
                f"{wanted} devices are needed on this machine, in whose islands are free: {counts}",
                hint=f"other engines have leased theirs in {self._folder}; see [plugin.swift] islands",
            )
        return [RankPlace(index=index, devices=tuple(chosen)) for index in range(wanted)]

    def start(self, place: int, process: RankProcess) -> None:
        """Starts a process in a session of its own, and leaves its input to the thread."""
        with self._lock:
            if self._is_killed:
                return
            child = subprocess.Popen(
                [sys.executable, *process.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
            self._ranks[place] = _Rank(child, process.input)
            if not self._thread.is_alive():
                self._thread.start()
        os.write(self._wake, bytes(1))

    def kill(self) -> None:
        """Kills the sessions of all processes that have not ended."""
        with self._lock:
            self._is_killed = True
            for rank in self._ranks.values():
                if not rank.has_ended:
                    rank.was_killed = True
                    rank.kill_group()

    def close(self) -> None:
        """Kills, waits, and gives the devices back."""
        self.kill()
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive():
            os.write(self._wake, bytes(1))
            self._thread.join()
        self._selector.close()
        for file in (self._woken, self._wake, *self._leases.values()):
            os.close(file)
        self._leases.clear()

    def _lease(self, device: str) -> bool:
        """Whether the device was free. Its file then stays open in this process, and in no other."""
        file = os.open(self._folder / f"device-{quote(device, safe='')}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._leases[device] = file
        return True

    def _watch(self) -> None:
        """Until it is closed and all processes have ended."""
        while not (self._is_closed and all(rank.has_ended for rank in self._ranks.values())):
            for key, _ in self._selector.select():
                key.data()

    def _watch_new(self) -> None:
        """Watches the processes that were started since."""
        os.read(self._woken, 64)
        with self._lock:
            new = [(place, rank) for place, rank in self._ranks.items() if not rank.is_watched]
        for place, rank in new:
            rank.is_watched = True
            self._selector.register(rank.output, selectors.EVENT_READ, partial(self._read, place, rank))
            self._selector.register(rank.input, selectors.EVENT_WRITE, partial(self._write, rank))
            self._selector.register(rank.end, selectors.EVENT_READ, partial(self._end, place, rank))

    def _write(self, rank: _Rank) -> None:
        """Writes as much of the input as there is room for. The pipe stays open behind it."""
        if rank.has_ended:
            return
        try:
            rank.rest = rank.rest[os.write(rank.input, rank.rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it closed its input, or has ended
            rank.rest = rank.rest[:0]
        if not rank.rest:
            self._selector.unregister(rank.input)

    def _read(self, place: int, rank: _Rank) -> None:
        """Says the lines that are whole by now."""
        if rank.has_ended:
            return
        try:
            data = os.read(rank.output, _PIPE)
        except BlockingIOError:
            return
        if not data:  # it closed its output, and may go on
            self._selector.unregister(rank.output)
        *lines, rank.line = (rank.line + data).split(b"\n")
        for line in lines:
            self._context.said(place, line.decode(errors="replace"))

    def _end(self, place: int, rank: _Rank) -> None:
        """Says what is left, and reports the end. Until the process is reaped, its group's number is no other's."""
        rank.kill_group()  # what it started and left
        if rank.output in self._selector.get_map():
            self._read(place, rank)
        if rank.line:
            self._context.said(place, rank.line.decode(errors="replace"))
        for file in (rank.output, rank.input, rank.end):
            if file in self._selector.get_map():
                self._selector.unregister(file)
        with self._lock:
            code = rank.reap()
        if not rank.was_killed:
            how = f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
            self._context.ended(place, how)


class _Rank:
    """A process. ``rest`` is what is still to be written to its input, ``line`` the start of a line of its output."""

    def __init__(self, child: subprocess.Popen[bytes], data: bytes) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child = child
        self.input, self.output, self.end = child.stdin.fileno(), child.stdout.fileno(), os.pidfd_open(child.pid)
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        self.rest, self.line = memoryview(data), b""
        self.is_watched = self.was_killed = self.has_ended = False

    def kill_group(self) -> None:
        """Not to be called once it was reaped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Its exit code, or the negative number of a signal."""
        code = self._child.wait()
        self.has_ended = True
        os.close(self.end)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        return code


def _choose(free: Sequence[Sequence[str]], wanted: int) -> list[str]:
    """``wanted`` devices of as few islands as can be, those of one next to each other; none where there are fewer.
    The last island is the smallest that suffices, so that large ones stay whole for others."""
    if sum(map(len, free)) < wanted:
        return []
    chosen: list[str] = []
    left = sorted(free, key=len)
    while len(chosen) < wanted:
        missing = wanted - len(chosen)
        island = next((island for island in left if len(island) >= missing), left[-1])
        left.remove(island)
        chosen += island[:missing]
    return chosen


def _signal_name(number: int) -> str:
    """Real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
