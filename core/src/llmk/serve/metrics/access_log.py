"""The outermost layer: request ids, counts, the access log, and the net for what nobody caught."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmk.config.logs import request_id
from llmk.serve.http import errors
from llmk.serve.metrics.prometheus import Metrics

logger = logging.getLogger("llmk.access")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
OTHER = "other"
"""What stands for clients' own words among the labels of metrics: each value of a label is kept for good."""
PATH_LIMIT = 256
_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AccessLog:
    """Counts answers, and writes a line for each, whose length has a bound. ``metrics`` keep nothing of a client's."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """A request that the application answered."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        path = errors.shortened(scope["path"], PATH_LIMIT)
        self._metrics.http_requests.labels(method, getattr(scope.get("route"), "path", OTHER), str(status)).inc()
        told = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6)}
        logger.info("%s %r %s %.3fs", method, path, status, seconds, extra=told)

    def refused(self, status: int, id: str, why: str) -> None:
        """A request that was refused before the application saw it; there may be neither method nor path."""
        self._metrics.http_requests.labels(OTHER, OTHER, str(status)).inc()
        told = {"status": status, "request_id": id}
        logger.info("%s %s", status, errors.shortened(why, PATH_LIMIT), extra=told)


class AccessLogMiddleware:
    """Sees every request come and go.

    An ``x-request-id`` of up to 128 printable characters goes into the response and the log; otherwise one is made.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._log = AccessLog(metrics)

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
            self._log.answered(scope, state["status"], time.monotonic() - started)
