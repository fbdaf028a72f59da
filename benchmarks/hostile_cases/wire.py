"""HTTP as an attacker speaks it: over plain sockets, so that every byte is the case's own."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

ATTACKER = "127.0.0.2"
"""Where attackers come from: another address than the quiet client's, as the clients of a server have."""
PIECE = 1 << 16
LONGEST = 120.0
"""Seconds after which any exchange is ended."""
BLAMELESS = frozenset({408, 413, 414, 429, 431, 503})
"""What any request may be answered with: it came too slowly, is too large, or there is too much to do."""


_ENDS = (b"message_stop\n", b"response.completed\n", b"response.incomplete\n")
"""The last events of streams with named events, where nothing failed."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server under attack. A request must be answered, or cut off, ``within`` so many seconds. ``key``: the API key
    that requests bear, if any."""

    host: str
    port: int
    within: float = 30.0
    key: str = ""

    def connect(self, *, receive: int = 0, source: str = ATTACKER) -> socket.socket:
        """A new connection, of which ``receive`` is the size of the receive buffer."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if receive:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            connection.settimeout(self.within)
            with contextlib.suppress(OSError):  # not every system has all of 127.0.0.0/8
                connection.bind((source, 0))
            connection.connect((self.host, self.port))
        except OSError:
            connection.close()
            raise
        return connection

    @property
    def authority(self) -> str:
        """The value of a Host header."""
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class Outcome:
    """What became of one request, or several over one connection: a status, or another word. ``wrong`` says what is
    wrong with it, in words."""

    kind: str
    seconds: float = 0.0
    wrong: str = ""
    requests: int = 1


def head(target: Target, method: str, path: str, headers: Mapping[str, str | int] | None = None) -> bytes:
    """The head of a request."""
    key = {"authorization": f"Bearer {target.key}"} if target.key else {}
    every = {"host": target.authority, "content-type": "application/json", **key, **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def request(
    target: Target, method: str, path: str, body: bytes = b"", headers: Mapping[str, str | int] | None = None
) -> bytes:
    """A whole request."""
    return head(target, method, path, {"content-length": len(body), **(headers or {})}) + body


def exchange(
    target: Target, sent: Iterable[bytes], expected: frozenset[int], *, may_cut: bool = False, patience: float = 0.0
) -> Outcome:
    """Sends bytes over a connection of its own, and judges the answer, as :func:`converse` does."""
    return converse(target, sent, expected, may_cut=may_cut, patience=patience)[0]


def converse(
    target: Target, sent: Iterable[bytes], expected: frozenset[int], *, may_cut: bool = False, patience: float = 0.0
) -> tuple[Outcome, bytes]:
    """Sends bytes over a connection of its own. Returns what became of them, and the answer's body.

    A server that has read enough may answer and close before it was sent all. ``may_cut``: it may close without. With
    ``patience``, the work is valid and much: the client leaves after so many seconds, and nothing is wrong with that.
    """
    began = time.monotonic()

    def ended(kind: str, wrong: str = "", body: bytes = b"") -> tuple[Outcome, bytes]:
        seconds = time.monotonic() - began
        if patience and seconds >= patience:
            return Outcome("left", seconds), b""
        return Outcome(kind, seconds, wrong), body

    try:
        with target.connect() as connection:
            leaving = threading.Timer(patience or LONGEST, _shut, (connection,))  # a stream may go on and on
            leaving.daemon = True
            leaving.start()
            cut = not _send(connection, sent)
            try:
                status, body = read(connection)
            except (HTTPException, ConnectionError) as error:
                fine = may_cut or cut
                return ended("cut", "" if fine else f"the connection was closed without an answer: {error!r}")
            finally:
                leaving.cancel()
        return ended(str(status), judge(status, body, expected), body)
    except TimeoutError:
        return ended("late", f"no answer came within {target.within:g} s")
    except OSError as error:
        return ended("refused", f"no connection: {error!r}")


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _send(connection: socket.socket, sent: Iterable[bytes]) -> bool:
    """Sends it all; returns whether that could be done."""
    try:
        for piece in sent:
            connection.sendall(piece)
    except ConnectionError:
        return False
    return True


def read(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    response = HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read()
    finally:
        response.close()


def judge(status: int, body: bytes, expected: frozenset[int]) -> str:
    """What is wrong with an answer, or ``""``."""
    shown = body[:300].decode(errors="replace")
    if status not in expected | BLAMELESS:
        return f"{status} is not among {sorted(expected)}: {shown}"
    if status >= 400:
        return "" if len(body) < PIECE else f"the error takes {len(body):,} bytes: {shown}"
    if body.startswith(b"data: "):
        return _judge_stream(body)
    if body.startswith(b"event: ") and not body.rsplit(b"event: ", 1)[1].startswith(_ENDS):
        return f"the stream broke off: {body[-300:]!r}"
    return ""


def _judge_stream(body: bytes) -> str:
    if not body.rstrip().endswith(b"data: [DONE]"):
        return f"the stream broke off: {body[-300:]!r}"
    if b'"server_error"' in body and b'data: {"error"' in body:
        at = body.index(b'data: {"error"')
        error = json.loads(body[at + 6 :].split(b"\n", 1)[0])["error"]
        return "" if error.get("code") in ("overloaded", "shutting_down") else f"error in the stream: {error}"
    return ""


def repeated(unit: bytes, size: int) -> Iterator[bytes]:
    """About ``size`` bytes, a piece at a time."""
    piece = unit * max(1, PIECE // len(unit))
    for _ in range(max(1, size // len(piece))):
        yield piece
