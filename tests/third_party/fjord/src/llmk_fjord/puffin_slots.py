"""A launcher: ranks on this machine, on devices that several engines share by lock files.

Each name in ``slots`` is a device, which an engine has while it holds the lock of the file with that name in
``slots_folder``; the system gives the lock back when the engine dies. Each rank is the leader of a process group of its
own, so that whatever it started is killed with it. ``slots_prefix`` is what its command begins with, such as
``["taskset", "-c", "{index}"]``.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from llmk.api import ConfigError, LaunchContext, NotEnoughResources, RankPlace, RankProcess

from .puffin_specs import Options

LAST_WORDS = 0.5
"""Seconds for which output is awaited after a process ended, from what it started and left."""

CLOSING = 10.0
"""Seconds for which :meth:`Slots.close` waits for killed processes."""


class Slots:
    """Follows ``llmk.api.RankLauncher``."""

    address = ""

    def __init__(self, context: LaunchContext) -> None:
        self._context = context
        self._options = Options.model_validate(dict(context.options))
        self._ranks = context.query.tensor * context.query.pipeline
        user = f"llmk-fjord-{os.getuid()}"
        self._folder = Path(self._options.slots_folder or Path(tempfile.gettempdir(), user)).expanduser()
        self._lock = threading.Lock()
        self._running: list[_Running] = []
        self._held: list[int] = []
        self._devices: tuple[str, ...] = ()
        self._is_closed = False

    def place(self) -> Sequence[RankPlace]:
        """The first devices that no other engine has; with no ``slots``, as many places as needed."""
        if not self._options.slots:
            return [RankPlace(index=index) for index in range(self._ranks)]
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        taken: list[str] = []
        for name in self._options.slots:
            if len(taken) < self._ranks and self._take(name):
                taken.append(name)
        if len(taken) < self._ranks:
            self._give_back()
            raise NotEnoughResources(
                f"{socket.gethostname()} has {len(taken)} free of {len(self._options.slots)} devices"
                f" ({self._context.resource}), and {self._ranks} ranks need one each",
                hint="stop another engine, name more devices in [plugin.puffin] slots, or lower [parallel]",
            )
        self._devices = tuple(taken)
        return [RankPlace(index=index, devices=self._devices) for index in range(self._ranks)]

    def start(self, place: int, process: RankProcess) -> None:
        """Starts a process, and threads that write its input, read its output, and wait for its end."""
        device = self._devices[place] if self._devices else str(place)
        prefix = [
            each.replace("{index}", str(place)).replace("{device}", device) for each in self._options.slots_prefix
        ]
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the launcher was killed or closed")
            try:
                child = subprocess.Popen(
                    [*prefix, sys.executable, *process.arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                command = (prefix or [sys.executable])[0]
                raise ConfigError(
                    f"a rank can't be started by {command}: {error.strerror}",
                    hint="[plugin.puffin] slots_prefix is what its command begins with",
                ) from error
            running = _Running(place, child, self._context)
            self._running.append(running)
        running.begin(process.input)

    def kill(self) -> None:
        """Kills the process groups of all ranks. Their ends are not reported."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for each in running:
            each.kill()

    def close(self) -> None:
        """Kills, waits for the ends, and gives the devices back."""
        self.kill()
        for each in self._running:
            each.join()
        self._give_back()

    def _take(self, name: str) -> bool:
        file = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._held.append(file)
        return True

    def _give_back(self) -> None:
        held, self._held = self._held, []
        for file in held:
            os.close(file)


class _Running:
    """A process of a rank, with the threads that look after it."""

    def __init__(self, place: int, child: subprocess.Popen[bytes], context: LaunchContext) -> None:
        self._place, self._child, self._context = place, child, context
        self._lock = threading.Lock()
        self._is_reaped = self._was_killed = False
        self._has_ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, data: bytes) -> None:
        writer = self._thread(lambda: self._write(data))
        reader = self._thread(self._read)
        self._thread(lambda: self._wait(writer, reader))

    def kill(self) -> None:
        """Kills the group. The process is not reaped meanwhile, so its number is still its own."""
        with self._lock:
            if not self._is_reaped:
                self._was_killed = True
                self._kill_group()

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSING)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"llmk-slots-{self._place}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _write(self, data: bytes) -> None:
        """Writes the input, and leaves it open."""
        assert self._child.stdin is not None
        rest = memoryview(data)
        with suppress(BrokenPipeError):  # its end says more
            while rest:
                rest = rest[self._child.stdin.write(rest) :]

    def _read(self) -> None:
        """Passes on each line. What ends no line is a line when nothing follows."""
        assert self._child.stdout is not None
        file, rest = self._child.stdout.fileno(), b""
        poll = select.poll()
        poll.register(file, select.POLLIN | select.POLLHUP)
        while True:
            if not poll.poll(LAST_WORDS * 1000):
                if self._has_ended.is_set():
                    break
                continue
            data = os.read(file, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        self._context.said(self._place, line.removesuffix(b"\r").decode("utf-8", "replace"))

    def _wait(self, writer: threading.Thread, reader: threading.Thread) -> None:
        os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._kill_group()  # what it started and left
            code = self._child.wait()
            self._is_reaped = True
        self._has_ended.set()
        reader.join()
        writer.join()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        if not self._was_killed:
            self._context.ended(self._place, _how(code))


def _how(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
