"""What the engine's processes have in common: what a child is given, the sockets between, and how each learns that the
other is gone.

What a child needs comes pickled over its standard input, which stays open: its end tells that the parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import zmq

_LENGTH_BYTES = 8


def packed(folder: str, *given: object) -> bytes:
    """What the parent writes to a child's standard input. ``folder`` is the private one that holds the sockets."""
    payload = pickle.dumps((folder, *given))
    return len(payload).to_bytes(_LENGTH_BYTES, "little") + payload


def enter() -> tuple[Any, ...]:
    """Takes what the parent gave, in the child. From here on the child ends, and removes the folder, when the parent is
    gone.

    Signals that a terminal or a supervisor sends to the whole group are the parent's to handle.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    source = sys.stdin.buffer
    payload = source.read(int.from_bytes(source.read(_LENGTH_BYTES), "little"))
    if not payload:
        sys.exit("the parent is gone, and gave nothing to do")
    folder, *given = pickle.loads(payload)
    threading.Thread(target=_end_with_parent, args=(Path(folder),), name="llmk-parent", daemon=True).start()
    return tuple(given)


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


def ending(code: int) -> str:
    """How a process ended, by its exit status as ``subprocess`` tells it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end_with_parent(folder: Path) -> None:
    """Waits for the end of standard input, which comes when the parent is gone, however it went."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    for file in folder.glob("*"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    os._exit(0)
