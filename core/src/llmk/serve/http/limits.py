"""Limits of requests: their size, how slowly they may arrive, and how many may run concurrently."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from email.message import Message as Header

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmk.config.schema import ServerSection
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.error_handlers import Refused
from llmk.serve.http.errors import CLIENT_GONE, error_object
from llmk.serve.http.heap import HeapTrimmer
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.turns import Turns

SHOWN = 100
PIECE = 256 << 10
"""Bytes of a response that are sent at once."""
MOST_DIGITS = 18
UPLOADS = frozenset({("POST", "/v1/files")})
"""Routes whose bodies are forms with a file."""
FORM_BYTES = 64 << 10
"""Bytes of a form without its file."""
OF_PAGES = ("origin", "sec-fetch-site")
"""Headers of which a browser sends at least one with what a page sends to another site."""


class Limits:
    """Reads each body whole before the application sees any of it, and refuses what is too large (413), too slow (408),
    no JSON (415), or more than the server takes on (429). Clients take turns (:class:`~llmk.serve.http.turns.Turns`).

    A request counts for ``max_concurrent`` only when its body has arrived; until then, and until its response starts,
    its bytes count for ``max_buffered_bytes``; until it ends, if the route sets ``holds_body`` in the request's state.
    So do the bytes of a large response until they are sent. Bodies that a route doesn't read are ignored, so that
    probes always work. The body of an upload is passed on as it arrives, up to ``upload_bytes``. On the paths in
    ``untyped``, JSON of any content type is read, but not from a web page: one of another site can send other types
    than JSON's unasked.
    """

    def __init__(
        self, app: ASGIApp, section: ServerSection, upload_bytes: int = 0, untyped: Collection[str] = ()
    ) -> None:
        self._app = app
        self.section = section
        self.upload_bytes = upload_bytes
        self.untyped = frozenset(untyped)
        self.in_flight = 0
        self.buffered: Counter[str] = Counter()
        self.heap = HeapTrimmer()
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = tenant_of(scope)
        await self._turns.take(client)
        uploads = (scope["method"], scope["path"]) in UPLOADS
        request = (_Upload if uploads else _Request)(self, scope, client, receive)

        try:
            await self._app(scope, request.receive, _Answer(request, scope, receive, send))
        finally:
            request.end()


class _Answer:
    """Sends a response. A large one counts for the limits, and is sent in pieces, each when the client has read most of
    the ones before; it is replaced by an error if the client has too much to read."""

    def __init__(self, request: _Request, scope: Scope, receive: Receive, send: Send) -> None:
        self._request = request
        self._scope = scope
        self._receive = receive
        self._send = send
        self._refused = False

    async def __call__(self, message: Message) -> None:
        if self._refused:
            return
        if message["type"] == "http.response.start":
            if not self._scope.get("state", {}).get("holds_body"):
                self._request.drop_body()
            try:
                self._request.hold_answer(Headers(raw=message["headers"]).get("content-length", ""))
            except Refused as error:
                self._refused = True
                answer = JsonResponse(error_object(error.detail, error.status_code), error.status_code, error.headers)
                await answer(self._scope, self._receive, self._send)
                return
        elif len(body := message.get("body", b"")) > PIECE:
            for at in range(0, len(body) - PIECE, PIECE):
                await self._send({**message, "body": body[at : at + PIECE], "more_body": True})
            message = {**message, "body": body[at + PIECE :]}
        await self._send(message)


class _Request:
    """A request's body, and what it counts for the limits."""

    _expected = "application/json"
    _limit = "server.max_request_bytes"

    def __init__(self, limits: Limits, scope: Scope, client: str, receive: Receive) -> None:
        self._limits = limits
        self._section = limits.section
        self._headers = Headers(scope=scope)
        self._path = scope["path"]
        self._client = client
        self._receive = receive
        self._size = 0
        self._started = 0.0
        self._read = False
        self._works = False

    @property
    def _most(self) -> int:
        """The largest body."""
        return self._section.max_request_bytes

    def _is_accepted(self, maintype: str, subtype: str) -> bool:
        if maintype == "application" and (subtype == "json" or subtype.endswith("+json")):
            return True
        return self._path in self._limits.untyped and not any(name in self._headers for name in OF_PAGES)

    async def receive(self) -> Message:
        """The first call returns the whole body; later ones return the client's next message. Raises
        :class:`Refused`."""
        if self._read:
            return await self._receive()
        self._read = True
        self._check_headers()
        self._check_room()
        body = await self._body()
        self._check_room()
        self._works = True
        self._limits.in_flight += 1
        # An empty body is treated as an object without fields, so that the error names the required field.
        return {"type": "http.request", "body": body or b"{}", "more_body": False}

    def drop_body(self) -> None:
        """Called when the response starts: the body is no longer needed."""
        held = self._limits.buffered
        held[self._client] -= self._size
        if held[self._client] <= 0:
            del held[self._client]
        self._limits.heap.freed(self._size)
        self._size = 0

    def hold_answer(self, length: str) -> None:
        """Counts a response of so many bytes, if it is large. Raises :class:`Refused`."""
        size = int(length) if length.isdigit() else 0
        if size > PIECE:
            self._size += size
            self._limits.buffered[self._client] += size
            self._check_held("responses that are not read yet")

    def end(self) -> None:
        """Called when the request has ended."""
        self.drop_body()
        self._limits.in_flight -= self._works

    def _check_headers(self) -> None:
        kind = Header()
        kind["content-type"] = self._headers.get("content-type", "application/octet-stream")
        if not self._is_accepted(kind.get_content_maintype(), kind.get_content_subtype()):
            given = self._headers.get("content-type", "no content-type")[:SHOWN]
            raise Refused(415, f"send the body with the header 'content-type: {self._expected}', not {given}")
        coding = self._headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise Refused(415, f"the body is compressed ({coding[:SHOWN]}), which is not supported; send it as it is")
        announced = self._headers.get("content-length", "0")
        # The HTTP parser has checked that these are digits. There may be thousands, which int() refuses to parse.
        if len(announced) > MOST_DIGITS or int(announced) > self._most:
            raise self._too_large()

    def _check_room(self) -> None:
        if self._limits.in_flight >= self._section.max_concurrent:
            raise _later(f"{self._limits.in_flight} requests are in flight, the limit (server.max_concurrent)")

    async def _body(self) -> bytes:
        parts: list[bytes] = []
        while True:
            message = await self._next()
            part = message.get("body", b"")
            self._hold(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _next(self) -> Message:
        """The next part of the body."""
        now = asyncio.get_running_loop().time()
        self._started = self._started or now
        rate = self._section.min_bytes_per_second
        due = now + self._section.read_timeout
        if rate:
            due = min(due, self._started + self._section.read_timeout + self._size / rate)
        try:
            async with asyncio.timeout_at(due):
                message = await self._receive()
        except TimeoutError:
            raise self._too_slow() from None
        if message["type"] == "http.disconnect":
            raise Refused(CLIENT_GONE, "the client disconnected before its body had arrived")
        return message

    def _hold(self, size: int) -> None:
        self._size += size
        self._limits.buffered[self._client] += size
        if self._size > self._most:
            raise self._too_large()
        if size:
            self._check_held("request bodies")

    def _check_held(self, what: str) -> None:
        held = self._limits.buffered
        # A single body is always accepted, even if it exceeds the limit for all.
        for key, most, now in (
            ("max_buffered_bytes", self._section.max_buffered_bytes, held.total()),
            ("max_buffered_bytes_per_client", self._section.max_buffered_bytes_per_client, held[self._client]),
        ):
            if now > most and now > self._size:
                raise _later(f"{what} of {now} bytes are held, above the limit (server.{key})")

    def _too_large(self) -> Refused:
        return Refused(413, f"the request is larger than {self._most} bytes ({self._limit})")

    def _too_slow(self) -> Refused:
        rate = f"{self._section.min_bytes_per_second:g} bytes per second (server.min_bytes_per_second)"
        limit = f"within {self._section.read_timeout:g} s (server.read_timeout), or after that at {rate}"
        return Refused(408, f"the body did not arrive {limit}", code="read_timeout", headers={"connection": "close"})


class _Upload(_Request):
    """A form with a file, which is passed on as it arrives: no more than a part of it is held."""

    _expected = "multipart/form-data"
    _limit = "storage.file_bytes, and what a form adds"

    @property
    def _most(self) -> int:
        return self._limits.upload_bytes + FORM_BYTES

    def _is_accepted(self, maintype: str, subtype: str) -> bool:
        return (maintype, subtype) == ("multipart", "form-data")

    async def receive(self) -> Message:
        """The next part of the body, and after it the client's next message. Raises :class:`Refused`."""
        if self._read:
            return await self._receive()
        if not self._started:
            self._check_headers()
            self._check_room()
        message = await self._next()
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise self._too_large()
        self._read = not message.get("more_body", False)
        return message

    def drop_body(self) -> None:
        """Nothing is held."""


def _later(message: str) -> Refused:
    return Refused(429, f"{message}; try again later", headers={"retry-after": "1"})
