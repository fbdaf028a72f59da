"""Messages over a socket pair: four bytes of length, then msgpack."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

import msgspec

HEAD = struct.Struct("<I")
_LIMIT = 1 << 18
"""Bytes that are read ahead of who takes them."""

encode = msgspec.msgpack.Encoder().encode


def framed(payload: bytes) -> bytes:
    """``payload`` as it is sent."""
    return HEAD.pack(len(payload)) + payload


def receive(connection: socket.socket) -> bytes:
    """Waits for the next payload. Raises EOFError where the other side is gone."""
    return _exactly(connection, HEAD.unpack(_exactly(connection, HEAD.size))[0])


def receive_with_socket(connection: socket.socket) -> tuple[bytes, socket.socket | None]:
    """The same, with the socket that came with it, if there is one."""
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
        """Takes over ``connection``."""
        connection.setblocking(False)
        return cls(*await asyncio.open_connection(sock=connection, limit=_LIMIT))

    def send(self, message: Any) -> None:
        """Sends a message without waiting; what the other side no longer takes in is lost."""
        self._writer.write(framed(encode(message)))

    async def send_large(self, payload: bytes) -> None:
        """Sends a payload of any size, as the other side takes it in."""
        self._writer.write(HEAD.pack(len(payload)))
        view = memoryview(payload)
        for start in range(0, len(payload), _LIMIT):
            self._writer.write(view[start : start + _LIMIT])
            await self._drain()

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # who receives reads the end
            await self._writer.drain()

    async def receive(self) -> bytes:
        """Waits for the next payload. Raises EOFError where the other side is gone."""
        try:
            (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            return await self._reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise EOFError from error

    def close(self) -> None:
        """Closes it: the other side reads its end."""
        self._writer.close()
