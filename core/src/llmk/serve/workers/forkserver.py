"""The process that workers are forked from (``python -m llmk.serve.workers.forkserver``).

It imports what workers need, is given what they serve, and then forks one whenever it is asked to: in milliseconds, and
sharing its memory. It has one thread, so that forking is safe. Nobody but it ends a worker or learns that one has
ended, so that no process id is taken for another's. It ends with its parent, and all workers end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from llmk.config import logs
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.serve.workers.frames import encode, framed, receive_with_socket

AHEAD = (
    "llmk.serve.workers.served_model",
    "llmk.serve.workers.prepare_worker",
    "llmk.serve.workers.parser_worker",
    "llmk.serve.workers.io_worker",
)
"""What is imported while nothing is known of what is to be served."""
_PR_SET_PDEATHSIG = 1


class Setup(msgspec.Struct, array_like=True, tag=True):
    """What is served: ``maker`` (``"module:attribute"``) makes it of ``given``. Workers leave marks in ``folder``."""

    maker: str
    given: bytes
    folder: str


class Fork(msgspec.Struct, array_like=True, tag=True):
    """Fork a worker that runs ``entry`` (``"module:attribute"``) at a socket, which comes with the message."""

    number: int
    entry: str
    nice: int


class Kill(msgspec.Struct, array_like=True, tag=True):
    """Kill a worker."""

    number: int


class Renice(msgspec.Struct, array_like=True, tag=True):
    """Let a worker give way to all others."""

    number: int
    nice: int


class Ready(msgspec.Struct, array_like=True, tag=True):
    """Workers can be forked, or why not."""

    failure: Failure | None = None


class Forked(msgspec.Struct, array_like=True, tag=True):
    """A worker runs."""

    number: int
    pid: int


class Ended(msgspec.Struct, array_like=True, tag=True):
    """A worker has ended, with ``code`` as ``subprocess`` has it."""

    number: int
    code: int


Order = Setup | Fork | Kill | Renice
Report = Ready | Forked | Ended


@dataclass(slots=True)
class ForkServer:
    """Follows the orders that come over ``control``."""

    control: socket.socket
    served: Any = None
    folder: Path | None = None
    """Of the marks, once it was told."""
    pids: dict[int, int] = field(default_factory=dict)
    """Of the workers that have not ended, by number."""

    def run(self) -> None:
        """Works until the parent is gone."""
        wakes, woken = socket.socketpair()
        for end in (wakes, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        decoder = msgspec.msgpack.Decoder(Order)
        try:
            while True:
                ready, _, _ = select.select([self.control, wakes], [], [])
                if wakes in ready:
                    with contextlib.suppress(BlockingIOError):
                        wakes.recv(4096)
                    self._reap()
                if self.control in ready:
                    payload, came = receive_with_socket(self.control)
                    self._follow(decoder.decode(payload), came, (wakes, woken))
        except (EOFError, ConnectionError):
            for pid in self.pids.values():
                os.kill(pid, signal.SIGKILL)
            if self.folder is not None:
                _remove_marks(self.folder)

    def _follow(self, order: Order, end: socket.socket | None, own: tuple[socket.socket, ...]) -> None:
        match order:
            case Setup():
                self.folder = Path(order.folder)
                self._report(self._set_up(order))
            case Fork():
                assert end is not None
                self._fork(order, end, own)
            case Kill():
                if pid := self.pids.get(order.number):
                    os.kill(pid, signal.SIGKILL)
            case Renice():
                if pid := self.pids.get(order.number):
                    os.setpriority(os.PRIO_PROCESS, pid, order.nice)

    def _set_up(self, order: Setup) -> Ready:
        try:
            module, _, attribute = order.maker.partition(":")
            self.served = getattr(import_module(module), attribute)(order.given)
        except Exception as error:
            return Ready(Failure.of(error))
        gc.collect()
        gc.freeze()  # what is here stays for good: collecting garbage in a worker would copy pages that all share
        return Ready()

    def _fork(self, order: Fork, end: socket.socket, own: tuple[socket.socket, ...]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            end.close()
            self.pids[order.number] = pid
            self._report(Forked(order.number, pid))
            return
        code = 1
        try:
            _become_worker(parent, order.nice)
            for inherited in (self.control, *own):
                inherited.close()
            module, _, attribute = order.entry.partition(":")
            assert self.folder is not None, "a fork comes after the setup"
            getattr(import_module(module), attribute)(self.served, end, PluginMark(self.folder / str(order.number)))
            code = 0
        except (EOFError, ConnectionError):
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        numbers = {pid: number for number, pid in self.pids.items()}
        with contextlib.suppress(ChildProcessError):
            while pid := (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (number := numbers.get(pid)) is not None:
                    del self.pids[number]
                    self._report(Ended(number, os.waitstatus_to_exitcode(ended[1])))

    def _report(self, report: Report) -> None:
        self.control.sendall(framed(encode(report)))


def _remove_marks(folder: Path) -> None:
    """Removes the marks, by their names, and the folder if nothing else is in it: never what is not its own."""
    with contextlib.suppress(OSError):
        for mark in folder.iterdir():
            if mark.name.isdecimal() and mark.is_file():
                mark.unlink()
        folder.rmdir()


def _become_worker(parent: int, nice: int) -> None:
    signal.set_wakeup_fd(-1)  # before what it names is closed
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":  # a worker that loops would not notice by itself
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    if nice:
        os.nice(nice)


def main() -> None:
    """The process. Signals that a terminal or a supervisor sends to the whole group are the parent's to handle."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a pool of threads does not survive a fork
    logs.setup()
    for ahead in AHEAD:
        import_module(ahead)
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
