"""Messages over a socket pair: a length of four bytes, followed by msgpack."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

import msgspec

HEAD = struct.Struct("<I")
_LIMIT = 1 << 18
"""Limit of buffered bytes."""

encode = msgspec.msgpack.Encoder().encode


def framed(payload: bytes) -> bytes:
    """``payload`` with its length."""
    return HEAD.pack(len(payload)) + payload


def receive(connection: socket.socket) -> bytes:
    """Waits for the next payload. Raises EOFError if the other side has closed."""
    return _exactly(connection, HEAD.unpack(_exactly(connection, HEAD.size))[0])


def receive_with_socket(connection: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Like :func:`receive`, with the socket that was sent with the payload, if there is one."""
    head, sockets, _, _ = socket.recv_fds(connection, HEAD.size, 1)
    head += _exactly(connection, HEAD.size - len(head)) if head else b""
    if not head:
        raise EOFError
    payload = _exactly(connection, HEAD.unpack(head)[0])
    return payload, socket.socket(fileno=sockets[0]) if sockets else None


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = connection.recv(min(size - len(found), _LIMIT))
        if not more:
            raise EOFError
        found += more
    return bytes(found)


class Link:
    """The event loop's end of a socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, connection: socket.socket) -> Link:
        """Creates a link that owns ``connection``."""
        connection.setblocking(False)
        return cls(*await asyncio.open_connection(sock=connection, limit=_LIMIT))

    def send(self, message: Any) -> None:
        """Sends a message without waiting; it is lost if the other side has ended."""
        self._writer.write(framed(encode(message)))

    async def send_large(self, payload: bytes) -> None:
        """Sends a payload of any size, waiting for the other side to read it."""
        self._writer.write(HEAD.pack(len(payload)))
        view = memoryview(payload)
        for start in range(0, len(payload), _LIMIT):
            self._writer.write(view[start : start + _LIMIT])
            await self._drain()

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # receive() raises EOFError
            await self._writer.drain()

    async def receive(self) -> bytes:
        """Waits for the next payload. Raises EOFError if the other side has closed."""
        try:
            (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            return await self._reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise EOFError from error

    def close(self) -> None:
        """Closes the connection; the other side gets EOFError."""
        self._writer.close()
