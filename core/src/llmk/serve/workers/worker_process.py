"""The front end's side of the fork server: starts it, forks workers, and replaces it if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from llmk.api import LlmkError, RequestError
from llmk.engine.processes.child_process import ending
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.kernel.interpreter import PYTHON
from llmk.serve.workers.forkserver import Ended, Fork, Forked, Kill, Order, Ready, Renice, Report, Setup, fork
from llmk.serve.workers.frames import Link, encode, framed

LAST_SECONDS = 1.0
"""What a worker that closed its socket gets to end."""
MEMORY_SECONDS = 0.05
"""How often the memory of a worker at work is looked at."""
CLOSE_SECONDS = 5.0
"""Time for the fork server to end before it is killed."""
_decode_report = msgspec.msgpack.Decoder(Report).decode


class TooMuchMemory(RequestError):
    """A request made its worker take too much memory."""

    code, http_status = "request_too_large", 413

    def __init__(self, most: int) -> None:
        what = f"the request takes more than {most} bytes of memory while it is read (server.worker_memory)"
        super().__init__(what, hint="send less in one request")


class Worker:
    """A worker process. Requests and results are sent over ``link``; ``mark`` shows which plugin code is running."""

    def __init__(
        self,
        order: Fork,
        pid: int,
        link: Link,
        mark: PluginMark,
        ended: asyncio.Future[int],
        send: Callable[[Order], None],
    ) -> None:
        self.pid = pid
        self.link = link
        self.mark = mark
        self.ended = ended
        """A future of the exit code, in the form of ``subprocess``."""
        self._number = order.number
        self._send = send
        self._first = self._resident()
        self._exceeds = False
        """Whether it was ended because of its memory."""

    @property
    def growth(self) -> int:
        """Bytes that it holds in memory, more than when it was forked."""
        return self._resident() - self._first

    async def receive(self, most: int) -> bytes:
        """Its next answer. Raises :class:`TooMuchMemory`, and ends it, where it grows by more than ``most`` bytes, and
        EOFError where it is gone.
        """
        self._watch(most)
        try:
            return await self.link.receive()
        except EOFError:
            if self._exceeds:
                raise TooMuchMemory(most) from None
            raise
        finally:
            self._watching.cancel()

    def _watch(self, most: int) -> None:
        self._watching = asyncio.get_running_loop().call_later(MEMORY_SECONDS, self._look, most)

    def _look(self, most: int) -> None:
        self._exceeds = self.growth > most
        if self._exceeds:
            self.kill()
        else:
            self._watch(most)

    def _resident(self) -> int:
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    async def ending(self) -> str:
        """Waits until the worker has ended, and returns how, in words. Kills it if it does not end soon."""
        try:
            return ending(await asyncio.wait_for(asyncio.shield(self.ended), LAST_SECONDS))
        except TimeoutError:
            self.kill()
            return ending(await self.ended)

    def kill(self) -> None:
        """Kills the worker."""
        self._send(Kill(self._number))

    def close(self) -> None:
        """Closes the socket, after which the worker ends. Idempotent."""
        self.link.close()
        self.mark.close()
        self.mark.path.unlink(missing_ok=True)

    def renice(self, nice: int) -> None:
        """Changes the worker's niceness."""
        self._send(Renice(self._number, nice))


class WorkerProcesses:
    """Forks workers from a fork server: at first the one of :meth:`share`, if there is one, else one that makes the
    served model by ``maker`` (``"module:attribute"``) of what ``given`` returns."""

    def __init__(self, maker: str, given: Callable[[], bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llmk-", ignore_cleanup_errors=True)
        self._numbers = itertools.count()
        self._maker, self._given = maker, given
        self._shared: tuple[socket.socket, int] | None = None
        self._server: _Server | None = None
        self._starting = asyncio.Lock()

    def share(self, served: object) -> None:
        """Forks a fork server that shares ``served`` and all that this process holds, before there is an event loop.
        Does nothing where a plugin has started a thread: what it holds at the time of a fork stays locked."""
        if threading.active_count() == 1:
            self._shared = fork(served, Path(self._folder.name))

    async def start(self) -> None:
        """Starts the fork server. Raises the errors of ``maker`` as :class:`~llmk.api.LlmkError`."""
        if self._shared is None:
            self._server = _Server.spawned()
            given = await asyncio.to_thread(self._given)
            await self._server.set_up(Setup(self._maker, given, self._folder.name))
        else:
            control, pid = self._shared
            self._server, self._shared = _Server(control, psutil.Process(pid)), None
            await self._server.listen()

    async def fork(self, entry: str, nice: int = 0) -> Worker:
        """Forks a worker that runs ``entry``. Raises LlmkError if that fails."""
        for _ in range(2):
            async with self._starting:
                assert self._server is not None, "the fork server was not started"
                if self._server.dead:
                    await self._server.close()
                    await self.start()
            number = next(self._numbers)
            with contextlib.suppress(EOFError):
                return await self._server.fork(Fork(number, entry, nice), Path(self._folder.name) / str(number))
        raise LlmkError("no worker process can be started; see the server's log")

    @property
    def pid(self) -> int:
        """The fork server's process id."""
        assert self._server is not None, "the fork server was not started"
        return int(self._server.process.pid)

    async def close(self) -> None:
        """Ends the fork server and all workers. Idempotent."""
        if self._shared is not None:
            await self.start()
        if self._server is not None:
            await self._server.close()
        self._folder.cleanup()


class _Server:
    """One fork server process, a child of this one."""

    def __init__(self, control: socket.socket, process: psutil.Process) -> None:
        self._control = control
        self.process = process
        self.dead = False
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._forked: dict[int, asyncio.Future[int]] = {}
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._link: Link | None = None
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    def spawned(cls) -> _Server:
        """Starts a process that has loaded nothing."""
        control, theirs = socket.socketpair()
        with theirs:
            command = (*PYTHON, "-m", "llmk.serve.workers.forkserver", str(theirs.fileno()))
            process = psutil.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        return cls(control, process)

    async def listen(self) -> None:
        """Follows what the process reports."""
        self._link = await Link.open(self._control)
        self._listening = asyncio.create_task(self._listen(self._link), name="llmk-forks")

    async def set_up(self, setup: Setup) -> None:
        """Sends the setup, and waits until workers can be forked."""
        payload = framed(encode(setup))
        with contextlib.suppress(ConnectionError):  # it has ended, which _listen notices
            await asyncio.to_thread(self._control.sendall, payload)  # it may be more than the socket holds
        await self.listen()
        ready = await asyncio.shield(self._ready)
        if ready.failure is not None:
            raise ready.failure.error()

    async def fork(self, order: Fork, mark: Path) -> Worker:
        """Forks a worker. Raises EOFError if the fork server has ended."""
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        forked = self._forked[order.number] = loop.create_future()
        ended = self._ended[order.number] = loop.create_future()
        try:
            with theirs:
                self._order(order, theirs)
            pid = await forked
        except BaseException:
            ours.close()
            raise
        finally:
            del self._forked[order.number]
        return Worker(order, pid, await Link.open(ours), PluginMark(mark), ended, self._order_quietly)

    def _order(self, order: Order, end: socket.socket | None = None) -> None:
        """Sends an order. Orders are small, so this does not block, unless the process is stopped or has ended."""
        payload = framed(encode(order))
        try:
            sent = socket.send_fds(self._control, [payload], [end.fileno()] if end is not None else [])
        except OSError as error:
            raise EOFError from error
        if sent < len(payload):
            self._die()
            raise EOFError

    def _order_quietly(self, order: Order) -> None:
        with contextlib.suppress(EOFError):
            self._order(order)

    async def _listen(self, link: Link) -> None:
        with contextlib.suppress(EOFError):
            while True:
                match _decode_report(await link.receive()):
                    case Ready() as ready:
                        self._ready.set_result(ready)
                    case Forked(number, pid):
                        if (forked := self._forked.get(number)) is not None and not forked.done():
                            forked.set_result(pid)
                    case Ended(number, code):
                        self._ended.pop(number).set_result(code)
        self._die()

    def _die(self) -> None:
        """Kills the process, which kills its workers; called when it has ended or can't be used."""
        self.dead = True
        self._kill()
        if not self._ready.done():
            self._ready.set_exception(LlmkError("the process that workers are forked from ended before it was ready"))
            self._ready.exception()  # it may not be awaited
        for forked in self._forked.values():
            if not forked.done():
                forked.set_exception(EOFError())
        for ended in self._ended.values():
            ended.set_result(-signal.SIGKILL)
        self._ended.clear()

    def _kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()

    async def close(self) -> None:
        """Ends the process by closing its socket; it then kills its workers."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._link is not None:
            self._link.close()
        self._control.close()
        try:
            await asyncio.to_thread(self.process.wait, CLOSE_SECONDS)
        except psutil.TimeoutExpired:
            self._kill()
            await asyncio.to_thread(self.process.wait)
        self._die()
