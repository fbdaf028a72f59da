"""What the engine's processes have in common: what a child is given, the sockets between, and how each learns that the
other is gone.

What a child needs comes pickled over its standard input, which stays open: it ends when the parent is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import zmq

from llmk.kernel.interpreter import keep_path_safe
from llmk.kernel.loader import load_object

logger = logging.getLogger(__name__)

STOPPED_SECONDS = 10.0
"""A process that is stopped for so long is not expected to go on, and is replaced. A debugger's stop is not meant."""
LOOK_SECONDS = 0.5
"""Between two looks at a process."""
_LENGTH_BYTES = 8


def set_up_early(process: subprocess.Popen[bytes], early_setup: str) -> None:
    """Has a child call ``early_setup`` (:attr:`llmk.api.PlatformSpec.early_setup`) in a thread, at once."""
    if early_setup:
        write(process, _framed(early_setup))


def give(process: subprocess.Popen[bytes], folder: str, *given: object) -> None:
    """Gives a child what it needs. ``folder`` is the private one that holds the sockets."""
    write(process, packed(folder, *given))


def packed(folder: str, *given: object) -> bytes:
    """What :func:`give` writes. Without a ``folder``, the child removes nothing when its parent is gone."""
    return _framed((folder, pickle.dumps(given)))


def write(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Writes to a child's standard input, which stays open."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: its watcher reports how
        process.stdin.write(data)
        process.stdin.flush()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a child that leads a process group, and what is left of the group when the child has just ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left; macOS: those that are have ended
        os.killpg(process.pid, signal.SIGKILL)


class ParentLink:
    """What the parent gives, in the child, which may go on meanwhile. From here on it ends, and removes the folder,
    when the parent is gone.

    Signals that a terminal or a supervisor sends to the whole group are the parent's to handle.
    """

    def __init__(self) -> None:
        keep_path_safe()
        for ignored in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        self._pickled: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._follow_parent, name="llmk-parent", daemon=True).start()

    def take(self) -> tuple[Any, ...]:
        """Waits for it."""
        given: tuple[Any, ...] = pickle.loads(self._pickled.get())  # nosec B301 # the parent wrote it, to our standard input
        return given

    def _follow_parent(self) -> None:
        """Reads standard input to its end, which comes when the parent is gone, however it went."""
        folder = ""
        while frame := _frame():
            match pickle.loads(frame):  # nosec B301 # the parent wrote it, to our standard input
                case str(early_setup):
                    threading.Thread(target=_early_setup, args=(early_setup,), name="llmk-setup", daemon=True).start()
                case folder, pickled:
                    self._pickled.put(pickled)
        if folder:
            _remove(Path(folder))
        os._exit(0)


def bind(context: zmq.Context[Any], kind: int, folder: str, name: str) -> Any:
    """A socket that only this machine reaches: a file in ``folder`` where there are such, else a free local port."""
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.bind(f"ipc://{folder}/{name}" if zmq.has("ipc") else "tcp://127.0.0.1:*")
    return socket


def address(socket: zmq.Socket[Any]) -> str:
    """Where a bound socket is reached."""
    return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


def connect(context: zmq.Context[Any], kind: int, address: str) -> Any:
    """A socket that is connected to a bound one."""
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.connect(address)
    return socket


def rename(name: str) -> None:
    """Changes what the system's list of processes calls this one, where that can be."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


class StopWatch:
    """How long a process has been stopped (SIGSTOP), as far as it was looked at."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Looks at it."""
        now = time.monotonic()
        self._since = (self._since or now) if stopped(self._pid) else None
        return now - self._since if self._since is not None else 0.0


def stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def ending(code: int) -> str:
    """How a process ended, by its exit status as ``subprocess`` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _framed(given: object) -> bytes:
    payload = pickle.dumps(given)
    return len(payload).to_bytes(_LENGTH_BYTES, "little") + payload


def _frame() -> bytes:
    """The next frame on standard input; nothing where that ends before."""
    size = int.from_bytes(_read(_LENGTH_BYTES), "little")
    payload = _read(size)
    return payload if len(payload) == size else b""


def _read(count: int) -> bytes:
    """So many bytes of standard input, or those that are left. Python's own reader has a lock, which a thread that
    waits at the process's end would hold."""
    found = bytearray()
    while more := os.read(sys.stdin.fileno(), count - len(found)):
        found += more
    return bytes(found)


def _early_setup(location: str) -> None:
    try:
        load_object(location)(0)
    except Exception:
        logger.debug("%s could not set the device up early", location, exc_info=True)


def _remove(folder: Path) -> None:
    for file in folder.glob("*"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
