"""The listening socket, with limits on connections, which apply before anything is read from them."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from llmk.serve.http.errors import error_object

logger = logging.getLogger(__name__)

BACKLOG = 2048
REFUSALS_AT_ONCE = 64
"""Connections that are refused in one turn of the event loop, so that open ones are served in between."""
SPARE_FILES = 128
"""File descriptors that are reserved for the engine's sockets, the log and other files."""
WARN_SECONDS = 60.0
IPV6_PREFIX = 64
"""Bits of an IPv6 address that identify a client, which usually has all addresses of a network."""


class Listener(socket.socket):
    """A listening socket that keeps at most ``most`` connections open, and at most ``most_per_client`` of one client.

    Further connections are refused before the TLS handshake: with an error object in plain HTTP, with TLS by closing.
    """

    most: int = 0
    most_per_client: int = 0
    speaks_tls: bool = False

    def __init__(self, family: socket.AddressFamily) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._open: Counter[str] = Counter()
        self._warned = float("-inf")

    def accept(self) -> tuple[socket.socket, Any]:
        """The next admitted connection. Raises BlockingIOError if there is none, as sockets do."""
        for _ in range(REFUSALS_AT_ONCE):
            number, address = self._accept()  # type: ignore[attr-defined]
            client = network_of(address[0])
            connection = _Admitted(self.family, number, partial(self._release, client))
            self._open[client] += 1
            refusal = self._refusal(client)
            if refusal is None:
                # asyncio does this for sockets that name their protocol. Without, the first event of a response waits
                # 40 ms on a connection that is used again: for the client's delayed acknowledgement of the headers.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection, address
            self._refuse(connection, *refusal)
        raise BlockingIOError

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._open.total()

    def _refusal(self, client: str) -> tuple[int, str] | None:
        """Status and message if a connection exceeds a limit."""
        if self.most and self.connections > self.most:
            return 503, f"{self.most} connections are open, the limit (server.max_connections)"
        if self.most_per_client and self._open[client] > self.most_per_client:
            limit = f"{self.most_per_client} connections"
            return 429, f"{limit} from {client} are open, the limit (server.max_connections_per_client)"
        return None

    def _refuse(self, connection: socket.socket, status: int, message: str) -> None:
        if (now := time.monotonic()) - self._warned > WARN_SECONDS:
            self._warned = now
            logger.warning("connections are refused: %s", message)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            if not self.speaks_tls:
                connection.send(_response(status, message))
        connection.close()

    def _release(self, client: str) -> None:
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


class _Admitted(socket.socket):
    """A connection that calls ``on_close`` when it is closed."""

    def __init__(self, family: int, number: int, on_close: Callable[[], None]) -> None:
        super().__init__(family, socket.SOCK_STREAM, 0, fileno=number)
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None


def network_of(host: str) -> str:
    """The identity of a client: its IPv4 address, or the network of its IPv6 address; else ``host`` itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
    return str(address)


def room_for(connections: int) -> int:
    """Raises the process's limit of open files for ``connections`` connections, up to its hard limit.

    Returns the number of connections that are possible.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            connections = max(1, soft - SPARE_FILES)
            logger.warning("%d connections at most: the process may open %d files (ulimit -n)", connections, soft)
    return connections


def _response(status: int, message: str) -> bytes:
    phrase = {429: "Too Many Requests", 503: "Service Unavailable"}[status]
    body = msgspec.json.encode(error_object(message, status))
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"retry-after: 1\r\nconnection: close\r\n\r\n" + body
