"""Starts ranks on this machine, on devices that it leases from those that several engines share.

One thread looks after all processes: it writes their input as they read it, passes on what they write line by line, and
sees their ends through file descriptors of processes (``pidfd_open``).
"""

from __future__ import annotations

import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from llmk.api import ConfigError, LaunchContext, NotEnoughResources, RankPlace, RankProcess

from .rail_leases import Leases
from .rail_specs import Options

CHUNK = 1 << 16
LAST_WORDS_SECONDS = 1.0
"""How long a process's output is read behind its end, where something outside of its group still has it open."""


class LeasingLauncher:
    """Follows ``llmk.api.RankLauncher``."""

    address = ""
    """All places are on this machine."""

    def __init__(self, context: LaunchContext) -> None:
        self._context = context
        self._options = Options.model_validate(dict(context.options))
        self._names = self._options.devices or [str(n) for n in range(context.query.platform.num_devices)]
        self._leases = Leases(self._options.lease_folder, self._names)
        self._devices: list[str] = []
        self._loop = _Loop(context)
        self._lock = threading.Lock()
        self._was_killed = False

    def place(self) -> Sequence[RankPlace]:
        """Leases a device for each rank."""
        query = self._context.query
        count = query.tensor * query.pipeline
        self._devices = self._leases.take(count, self._options.wait_seconds)
        if not self._devices:
            raise NotEnoughResources(
                f"{count} devices ({self._context.resource}) are wanted, and fewer are free of this machine's: "
                f"{', '.join(self._names) or 'none is known'}",
                hint="end other engines, or name more in [plugin.rail] devices",
            )
        return [RankPlace(index=index, devices=tuple(self._devices)) for index in range(count)]

    def start(self, place: int, process: RankProcess) -> None:
        """Starts a process that leads a session. Its output is not buffered by Python, so that its last words come."""
        with self._lock:
            if self._was_killed:
                return
            try:
                child = subprocess.Popen(
                    [sys.executable, *process.arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    env=os.environ | {"PYTHONUNBUFFERED": "1"},
                    pass_fds=(self._leases.file(self._devices[place]),),
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"rank {place} can't be started: {error}", hint="see the system's limits") from error
            self._loop.add(_Rank(place, child, process.input))

    def kill(self) -> None:
        """Kills all processes, without waiting for them."""
        with self._lock:
            self._was_killed = True
        self._loop.kill()

    def close(self) -> None:
        """Kills, waits for the ends, and gives the devices back."""
        self.kill()
        self._loop.close()
        self._leases.give_back()


class _Rank:
    """A process, what is left of its input, and the line that it has begun."""

    def __init__(self, place: int, child: subprocess.Popen[bytes], data: bytes) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self.place, self.child, self.rest = place, child, memoryview(data)
        self.input, self.output = child.stdin.fileno(), child.stdout.fileno()
        self.handle = os.pidfd_open(child.pid)
        self.begun = bytearray()
        self.is_open = True
        """Whether more output may come."""
        self.ended_at = 0.0
        self.was_killed = self.is_reaped = False
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)

    def kill_group(self) -> None:
        """As long as the process is not reaped, its number is that of no other group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)


class _Loop:
    """The thread, which runs from the first process on until ``close``."""

    def __init__(self, context: LaunchContext) -> None:
        self._context = context
        self._selector = selectors.DefaultSelector()
        self._new: queue.SimpleQueue[_Rank] = queue.SimpleQueue()
        self._ranks: list[_Rank] = []
        self._lock = threading.Lock()
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, rank: _Rank) -> None:
        """Looks after a process from now on."""
        with self._lock:
            self._ranks.append(rank)
        self._new.put(rank)
        if self._thread is None:
            self._selector.register(self._bell, selectors.EVENT_READ, self._take_new)
            self._thread = threading.Thread(target=self._run, name="lagoon-ranks", daemon=True)
            self._thread.start()
        self._wake()

    def kill(self) -> None:
        """Kills every group whose process has not ended by itself before."""
        with self._lock:
            for rank in self._ranks:
                if not rank.is_reaped:
                    rank.was_killed = rank.was_killed or not rank.ended_at
                    rank.kill_group()

    def close(self) -> None:
        """Waits until all processes have ended."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
        self._selector.close()
        os.close(self._bell)
        os.close(self._ring)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it has been rung, and not been heard yet
            os.write(self._ring, b"!")

    def _run(self) -> None:
        while not (self._is_closed and all(rank.is_reaped for rank in self._ranks)):
            waiting = [rank.ended_at for rank in self._ranks if rank.ended_at and not rank.is_reaped]
            seconds = min(waiting) + LAST_WORDS_SECONDS - time.monotonic() if waiting else None
            for key, _ in self._selector.select(None if seconds is None else max(seconds, 0)):
                act: Callable[[], None] = key.data
                act()
            for rank in list(self._ranks):
                if rank.ended_at and not rank.is_reaped:
                    self._finish(rank)

    def _take_new(self) -> None:
        os.read(self._bell, CHUNK)
        while not self._new.empty():
            rank = self._new.get()
            self._selector.register(rank.input, selectors.EVENT_WRITE, lambda rank=rank: self._write(rank))
            self._selector.register(rank.output, selectors.EVENT_READ, lambda rank=rank: self._read(rank))
            self._selector.register(rank.handle, selectors.EVENT_READ, lambda rank=rank: self._see_end(rank))

    def _write(self, rank: _Rank) -> None:
        """Writes what the pipe takes. It stays open behind the input, for as long as this process lives."""
        try:
            rank.rest = rank.rest[os.write(rank.input, rank.rest[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it reads no more
            rank.rest = rank.rest[:0]
        if not rank.rest:
            self._selector.unregister(rank.input)

    def _read(self, rank: _Rank) -> None:
        """Passes on the lines that are whole."""
        try:
            piece = os.read(rank.output, CHUNK)
        except BlockingIOError:
            return
        first, *others = piece.split(b"\n")
        rank.begun += first
        for line in others:
            self._say(rank)
            rank.begun += line
        if not piece:
            if rank.begun:
                self._say(rank)
            rank.is_open = False
            self._selector.unregister(rank.output)

    def _say(self, rank: _Rank) -> None:
        line = rank.begun.decode(errors="replace")
        rank.begun.clear()
        self._context.said(rank.place, line)

    def _see_end(self, rank: _Rank) -> None:
        """The process has ended and is not reaped yet: what it left in its group is killed."""
        self._selector.unregister(rank.handle)
        with self._lock:
            rank.ended_at = time.monotonic()
            rank.kill_group()

    def _finish(self, rank: _Rank) -> None:
        """Reports the end, once everything that the process wrote was passed on."""
        if rank.is_open and time.monotonic() < rank.ended_at + LAST_WORDS_SECONDS:
            return
        if rank.is_open:
            if rank.begun:
                self._say(rank)
            self._selector.unregister(rank.output)
        if rank.input in self._selector.get_map():
            self._selector.unregister(rank.input)
        with self._lock:
            code = rank.child.wait()
            rank.is_reaped = True
        os.close(rank.handle)
        for pipe in (rank.child.stdin, rank.child.stdout):
            if pipe is not None:
                pipe.close()
        if not rank.was_killed:
            self._context.ended(rank.place, how_it_ended(code))


def how_it_ended(code: int) -> str:
    """What ``subprocess`` calls a return code, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-code}"
