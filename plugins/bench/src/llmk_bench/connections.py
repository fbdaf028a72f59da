"""Connections to one server, kept open between requests. Not a general HTTP client: it does what a load needs, at a
fraction of the cost of one, since what the client takes would be measured as the server's."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from llmk.api import ConfigError
from llmk_bench.response import BadResponse, Response


class ConnectionFailed(Exception):
    """The request could not be sent, or its answer did not arrive."""


class Connections:
    """Sends requests to the server at ``url``, each on a connection of its own. Raises ConfigError for another URL than
    http:// or https://."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no URL of a server", hint="name one with --url: http://127.0.0.1:8000")
        self._host, self._secure = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if self._secure else None
        named = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        lines = {"Host": f"{named}:{self._port}", "Content-Type": "application/json", **(headers or {})}
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[_Connection] = []

    async def send(self, path: str, body: bytes, on_event: Callable[[bytes, float], None]) -> Response:
        """Posts ``body``, or gets ``path`` where that is empty; returns the response once it is complete.

        A connection that the server closed while it was idle is replaced. Raises ConnectionFailed.
        """
        method = "POST" if body else "GET"
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._lines}Content-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        while True:
            connection = self._idle.pop() if self._idle else None
            reused = connection is not None
            if connection is None:
                connection = await self._open()
            response = Response(on_event)
            try:
                await connection.exchange(data, response)
            except ConnectionFailed:
                if reused and not response.started:
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            if response.reusable and not connection.closed:
                self._idle.append(connection)
            else:
                connection.close()
            return response

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise ConnectionFailed(f"no connection to {self._host}:{self._port}: {error}") from error
        return connection


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._response: Response | None = None
        self._finished: asyncio.Future[None] | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def exchange(self, data: bytes, response: Response) -> None:
        """Sends a request and waits for its response. Raises ConnectionFailed."""
        if self.closed:
            raise ConnectionFailed("the connection was closed")
        self._response, self._finished = response, asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            await self._finished
        finally:
            self._response = self._finished = None

    def data_received(self, data: bytes) -> None:
        response, finished = self._response, self._finished
        if response is None or finished is None or finished.done():
            self.close()  # no request is open
            return
        try:
            response.feed(data)
        except Exception as error:
            finished.set_exception(ConnectionFailed(str(error)))
            self.close()
            return
        if response.done:
            finished.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._response is None or self._finished is None or self._finished.done():
            return
        try:
            if error is not None:
                raise BadResponse(f"the connection broke: {error}")
            self._response.end()
        except BadResponse as bad:
            self._finished.set_exception(ConnectionFailed(str(bad)))
        else:
            self._finished.set_result(None)

    def close(self) -> None:
        """Closes it. Idempotent."""
        self.closed = True
        self._transport.close()
