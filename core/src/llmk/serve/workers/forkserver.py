"""The process that workers are forked from.

It is forked itself, of the server before that has threads (:func:`fork`), so that both share modules, tokenizer,
templates and parsers. One that takes the place of a fork server that died (``python -m llmk.serve.workers.forkserver``)
imports and loads them again. It forks workers on request, in milliseconds, which share its memory. It has one thread,
so that forking is safe. Only the fork server kills workers and waits for them, so that a reused process id is never
killed. It ends with its parent, and all workers end with it.
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
from llmk.engine.device.heap import find_trim
from llmk.engine.processes.child_process import rename
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.serve.workers.frames import encode, framed, receive_with_socket

AHEAD = (
    "llmk.serve.workers.served_model",
    "llmk.serve.workers.prepare_worker",
    "llmk.serve.workers.parser_worker",
    "llmk.serve.workers.io_worker",
)
"""Modules that are imported before the served model is known."""
_DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
NAME = "llmk-workers"
"""What the system's list of processes calls it and its workers."""
_PR_SET_PDEATHSIG = 1


class Setup(msgspec.Struct, array_like=True, tag=True):
    """Creates the served model with ``maker`` (``"module:attribute"``), called with ``given``. Workers write their
    marks to ``folder``."""

    maker: str
    given: bytes
    folder: str


class Fork(msgspec.Struct, array_like=True, tag=True):
    """Forks a worker that runs ``entry`` (``"module:attribute"``) with a socket, which is sent with the message."""

    number: int
    entry: str
    nice: int


class Kill(msgspec.Struct, array_like=True, tag=True):
    """Kills a worker."""

    number: int


class Renice(msgspec.Struct, array_like=True, tag=True):
    """Lowers the priority of a worker."""

    number: int
    nice: int


class Ready(msgspec.Struct, array_like=True, tag=True):
    """The setup is done, or it failed."""

    failure: Failure | None = None


class Forked(msgspec.Struct, array_like=True, tag=True):
    """A worker was forked."""

    number: int
    pid: int


class Ended(msgspec.Struct, array_like=True, tag=True):
    """A worker has ended; ``code`` is its exit code in the form of ``subprocess``."""

    number: int
    code: int


Order = Setup | Fork | Kill | Renice
Report = Ready | Forked | Ended

_decode_order = msgspec.msgpack.Decoder(Order).decode


@dataclass(slots=True)
class ForkServer:
    """Executes the orders that arrive at ``control``."""

    control: socket.socket
    served: Any = None
    folder: Path | None = None
    """The folder of the marks, known after the setup."""
    pids: dict[int, int] = field(default_factory=dict)
    """Process ids of the running workers, by number."""

    def run(self) -> None:
        """Executes orders until the parent has ended."""
        wakes, woken = socket.socketpair()
        for end in (wakes, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        try:
            while True:
                ready, _, _ = select.select([self.control, wakes], [], [])
                if wakes in ready:
                    with contextlib.suppress(BlockingIOError):
                        wakes.recv(4096)
                    self._reap()
                if self.control in ready:
                    payload, came = receive_with_socket(self.control)
                    self._follow(_decode_order(payload), came, (wakes, woken))
        except (EOFError, ConnectionError):
            for pid in self.pids.values():
                os.kill(pid, signal.SIGKILL)
            if self.folder is not None:
                _remove_marks(self.folder)
        finally:
            signal.set_wakeup_fd(-1)  # a worker that was killed may end after the descriptor is closed

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
        _freeze()
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
            assert self.folder is not None, "a fork must follow the setup"
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


def fork(served: Any, folder: Path) -> tuple[socket.socket, int]:
    """Forks a fork server that shares ``served`` and all that this process holds, which must have one thread. Its
    workers write their marks to ``folder``. Returns the socket for its orders, and its process id."""
    ours, theirs = socket.socketpair()
    _freeze()
    if pid := os.fork():
        theirs.close()
        return ours, pid
    code = 1
    try:
        _become_server(theirs.fileno())
        ForkServer(theirs, served, folder).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _freeze() -> None:
    """Readies this process for being forked: collecting its garbage in a child would copy shared pages."""
    gc.collect()
    if trim := find_trim():
        trim()
    gc.freeze()


def _become_server(control: int) -> None:
    """Closes what was inherited: a port, or the standard input of an engine, would stay open after their owner."""
    os.setsid()
    _ignore_signals()
    for number in map(int, os.listdir(_DESCRIPTORS)):  # how many there may be is a billion on some machines
        if number > 2 and number != control:
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(number)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    rename(NAME)


def _ignore_signals() -> None:
    """The parent handles signals that a terminal or a supervisor sends to the whole group."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)


def _remove_marks(folder: Path) -> None:
    """Removes files with names of marks, and then the folder if it is empty; other files are never removed."""
    with contextlib.suppress(OSError):
        for mark in folder.iterdir():
            if mark.name.isdecimal() and mark.is_file():
                mark.unlink()
        folder.rmdir()


def _become_worker(parent: int, nice: int) -> None:
    signal.set_wakeup_fd(-1)  # before the descriptor is closed
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":  # a worker in an endless loop would not notice that its parent ended
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    if nice:
        os.nice(nice)


def main() -> None:
    """Runs a fork server that loads what it shares."""
    _ignore_signals()
    rename(NAME)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its thread pool would not work after a fork
    logs.setup()
    for ahead in AHEAD:
        import_module(ahead)
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
