"""What the server takes on: how large a request may be, and how many at once."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmk.api import Overloaded
from llmk.serve import errors
from llmk.serve.reply import Reply


class Limits:
    """Refuses bodies beyond ``max_bytes`` (413) and work beyond ``max_concurrent`` requests in flight (429).

    A body is counted while it arrives, since a client need not announce its size. Only ``POST`` is work: probes are
    always answered.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_concurrent: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_concurrent = max_concurrent
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced) > self._max_bytes:
            await Reply(errors.error_object(self._too_large(), 413), 413)(scope, receive, send)
            return
        if self._in_flight >= self._max_concurrent:
            message = (
                f"{self._in_flight} requests are in flight, as many as may be (server.max_concurrent); try again later"
            )
            await errors.reply(Overloaded(message))(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._app(scope, self._counting(receive), send)
        finally:
            self._in_flight -= 1

    def _counting(self, receive: Receive) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._too_large(), {"connection": "close"})
            return message

        return counted

    def _too_large(self) -> str:
        return f"the request is larger than {self._max_bytes} bytes (server.max_request_bytes)"
