"""The outermost layer: request ids, counts, the access log, and the net for what nobody caught."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmk.engine.logs import request_id
from llmk.serve import errors
from llmk.serve.metrics import Metrics

logger = logging.getLogger("llmk.access")

_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Traffic:
    """Sees every request come and go.

    An ``x-request-id`` of up to 128 printable characters goes into the response and the log; otherwise one is made.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _PLAIN_ID.fullmatch(given) else uuid.uuid4().hex
        state: dict[str, Any] = scope.setdefault("state", {})
        state |= {"request_id": id, "status": 0}
        request_id.set(id)
        started = time.monotonic()

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        self._metrics.http_in_flight.inc()
        try:
            await self._app(scope, receive, marked)
        except Exception as error:
            if state["status"]:
                logger.exception("the request failed after its response had begun")
                raise
            logger.exception("the request failed")
            await errors.reply(error)(scope, receive, marked)
        finally:
            self._metrics.http_in_flight.dec()
            self._count(scope, state["status"], time.monotonic() - started)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._metrics.http_requests.labels(scope["method"], path, str(status)).inc()
        told = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 6)}
        logger.info("%s %r %s %.3fs", scope["method"], scope["path"], status, seconds, extra=told)
