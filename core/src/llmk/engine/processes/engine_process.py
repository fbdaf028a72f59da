"""An engine in a process of its own: the front end's client, and the process's entry (``python -m
llmk.engine.processes.engine_process``).

Commands and replies are msgpack over two ZeroMQ sockets in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec
import psutil
import zmq
import zmq.asyncio

from llmk.api import EngineDead, LlmkError
from llmk.config import logs
from llmk.engine.processes import child_process as child
from llmk.engine.processes.loop_client import LoopClient
from llmk.engine.processes.loop_messages import Close, Command, Reply
from llmk.engine.processes.spawn import STANDBY, spawn
from llmk.engine.wire.plugin_calls import MARKS, Culprit, Marks, watched
from llmk.engine.wire.plugin_mark import MarkedCall

CLOSE_SECONDS = 5.0
"""What a process gets to end by itself before it is killed."""
ENGINE_NAME, STANDBY_NAME = "llmk-engine", "llmk-standby"
"""What the system's list of processes calls one that runs an engine, and one that waits to."""
STANDBY_NICE = 5
"""How much the imports of a process that waits yield to others. Less, and requests notice; more, and they are not done
when a busy engine dies."""


class ProcessClient(LoopClient):
    """Has a process that was spawned run an engine, talks to it, and notices its end."""

    def __init__(self, process: Popen[bytes]) -> None:
        super().__init__()
        self._process = process
        self._ended = asyncio.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="llmk-")
        self._context = zmq.asyncio.Context()
        self._sender: zmq.asyncio.Socket = child.bind(self._context, zmq.PUSH, self._folder.name, "in")
        self._receiver: zmq.asyncio.Socket = child.bind(self._context, zmq.PULL, self._folder.name, "out")
        self._encoder = msgspec.msgpack.Encoder()
        self._given = False
        self._marks = Marks(Path(self._folder.name))
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]
        self._closing: asyncio.Task[None] | None = None
        threading.Thread(target=self._wait, name="llmk-engine-end", daemon=True).start()

    @classmethod
    async def start(
        cls, packed: dict[str, Any], *, builder: str, early_setup: str = "", **options: Any
    ) -> ProcessClient:
        """Starts a process in which ``builder`` (``"module:attribute"``) makes an engine of ``packed``
        (:func:`llmk.planning.packed_boot.pack`), while ``early_setup`` sets its device up. ``options`` are the other
        arguments of :meth:`build`.

        ``packed`` must be picklable. Raises what ``builder`` raises there, as the same class of
        :class:`~llmk.api.LlmkError`, or :class:`~llmk.api.EngineDead` where the process ends before.
        """
        client = cls(spawn())
        await client.build(packed, builder=builder, early_setup=early_setup, **options)
        return client

    def set_up_early(self, early_setup: str) -> None:
        """Has the process set its device up, before it is given what to build."""
        child.set_up_early(self._process, early_setup)

    async def build(
        self,
        packed: dict[str, Any],
        *,
        builder: str,
        early_setup: str = "",
        hang_seconds: float = 0.0,
        plugin_seconds: float = 0.0,
        distrusted: Iterable[str] = (),
    ) -> None:
        """Has the process make its engine; arguments and errors are those of :meth:`start`.

        Once it runs, it is killed if it does not answer for ``hang_seconds``, or if a plugin's code that its loop calls
        does not return for ``plugin_seconds`` (0: however long that is), or if it is stopped and not continued.
        ``distrusted`` are ids of plugins' code that it must not call.
        """
        self._given = True
        self._patience = hang_seconds or math.inf
        watching = f"{self._folder.name}/{MARKS}", frozenset(distrusted)
        given = builder, child.address(self._sender), child.address(self._receiver), watching
        try:
            self.set_up_early(early_setup)
            # In a thread: it may be more than the pipe holds.
            await asyncio.to_thread(child.give, self._process, self._folder.name, *given, packed)
            await self._ready
        except BaseException:
            await self.close()
            raise
        self._tasks.append(asyncio.create_task(self._look_after(plugin_seconds)))

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def check_health(self) -> float:
        """The same; a process that is stopped is not well, no matter what it runs."""
        silence = super().check_health()
        if child.stopped(self.pid):
            raise EngineDead("the engine's process is stopped (SIGSTOP)")
        return silence

    async def close(self) -> None:
        """Ends the process, by force where it doesn't go, and what it leaves behind; removes sockets and folder.
        Idempotent, and goes on where the caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._die(EngineDead("the engine was closed"))
        try:
            await self._end_process()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._context.destroy(linger=0)
            self._marks.close()
            self._folder.cleanup()

    async def _end_process(self) -> None:
        process = self._process
        if not self._given or not self._sent(Close()):  # it does not listen yet, or no longer
            process.kill()
        try:
            await asyncio.wait_for(self._ended.wait(), CLOSE_SECONDS)
        except TimeoutError:
            process.kill()
            await self._ended.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        await _end_session(process.pid)

    async def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(Reply)
        while True:
            self._take(decoder.decode(await self._receiver.recv()))

    def _wait(self) -> None:
        """Waits for the process's end, in a thread: a loop can't wait for a process that it did not start."""
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no one waits for it
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _watch(self) -> None:
        """Waits for the process's end; what it said before comes first."""
        await self._ended.wait()
        while await self._receiver.poll(timeout=50):
            await asyncio.sleep(0)
        how = child.ending(self._process.returncode)
        self._die(EngineDead(f"the engine's process {how}", hint="its own messages are on stderr"))

    async def _look_after(self, plugin_seconds: float) -> None:
        """Kills the process where it is stopped, or where a plugin's code does not return."""
        stop, before = child.StopWatch(self.pid), list[MarkedCall]()
        while True:
            await asyncio.sleep(child.LOOK_SECONDS)
            if stop.seconds >= child.STOPPED_SECONDS:
                self._kill(f"the engine's process was stopped (SIGSTOP) for {stop.seconds:.0f} s, and was killed")
                return
            limit = plugin_seconds if plugin_seconds and not stop.seconds else math.inf
            slow = [marked for marked in self._marks.read() if marked.seconds > limit]
            # Seen twice: what stopped all processes for a while makes a call look slow.
            if stuck := [marked for marked in slow if marked in before]:
                self.culprit = Culprit.of(stuck[0])
                what = f"did not return for {plugin_seconds:g} s (engine.plugin_seconds)"
                self._kill(f"{self.culprit} {what}, and the engine's process was killed")
                return
            before = slow

    def _kill(self, why: str) -> None:
        self._die(EngineDead(why))
        self._process.kill()

    def _die(self, error: LlmkError) -> None:
        # A signal to kill it comes from outside, no matter what runs at the time.
        if self._dead is None and self.culprit is None and signal.SIGKILL.name not in error.message:
            self.culprit = next((Culprit.of(marked) for marked in self._marks.read()), None)
        super()._die(error)

    def _send(self, command: Command) -> None:
        # What a process on its way out does not take in is no loss: _watch ends every request with the cause.
        self._sent(command)

    def _sent(self, command: Command) -> bool:
        """Hands a command over without waiting; whether a process is connected to take it."""
        try:
            zmq.Socket.send(self._sender, self._encoder.encode(command), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


async def _end_session(leader: int) -> None:
    """Kills what is left of an engine's session, such as workers that hang and hold the device's memory, and gives it a
    second to go. Workers lead process groups of their own in it.
    """
    for _ in range(50):
        left = [pid for pid in psutil.pids() if _session(pid) == leader]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        await asyncio.sleep(0.02)


def _session(pid: int) -> int | None:
    """The leader of a process's session; ``None``: the process has ended, or is not ours to ask about."""
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


class _Channel:
    """The process's ends of the two sockets."""

    def __init__(self, commands: str, replies: str) -> None:
        self._context = zmq.Context()
        self._commands: zmq.Socket[bytes] = child.connect(self._context, zmq.PULL, commands)
        self._replies: zmq.Socket[bytes] = child.connect(self._context, zmq.PUSH, replies)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Command)

    def receive(self, seconds: float | None) -> Iterator[Command]:
        """All commands that are there; waits for the first one, at most so long (``None``: for ever), in whole
        milliseconds."""
        if seconds is None:
            yield self._decoder.decode(self._commands.recv())
        elif milliseconds := int(1e3 * seconds):
            self._commands.poll(milliseconds)
        with contextlib.suppress(zmq.Again):
            while True:
                yield self._decoder.decode(self._commands.recv(zmq.NOBLOCK))

    def send(self, reply: Reply) -> None:
        """Hands over a reply without waiting."""
        self._replies.send(self._encoder.encode(reply))

    def close(self) -> None:
        """Lets what was sent go out, a second at most."""
        self._context.destroy(linger=1000)


def main() -> int:
    """The process: imports the modules that it is called with while it is given what to build, builds it, and runs it
    until it receives :class:`Close` or the front end is gone."""
    logs.setup()
    given = child.ParentLink()
    standby, modules = STANDBY in sys.argv, [argument for argument in sys.argv[1:] if argument != STANDBY]
    child.rename(STANDBY_NAME if standby else ENGINE_NAME)
    ahead = threading.Thread(target=_import, args=(modules, standby), name="llmk-imports")
    ahead.start()
    builder, commands, replies, watching, packed = given.take()
    child.rename(ENGINE_NAME)
    ahead.join()  # two threads that import modules that import each other would find them half done
    from llmk.engine.processes.engine_loop import run_engine  # imports the engine, which no front end has

    watched(*watching)
    module, _, attribute = builder.partition(":")
    channel = _Channel(commands, replies)
    done = run_engine(lambda: getattr(import_module(module), attribute)(packed), channel.receive, channel.send)
    channel.close()
    return 0 if done else 1


def _import(modules: Sequence[str], standby: bool) -> None:
    """Imports what will be needed, in a thread: on Linux a thread has a priority of its own, and one that was lowered
    could not be raised again."""
    if standby:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), STANDBY_NICE)
    for module in modules:
        with contextlib.suppress(Exception):  # the import that needs it raises again
            import_module(module)


if __name__ == "__main__":
    sys.exit(main())
