"""The outermost middleware: request ids, counters, the access log, and the handler of uncaught exceptions."""

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
"""The metric label for unknown methods and paths: every value of a label takes memory for ever."""
PATH_LIMIT = 256
_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AccessLog:
    """Counts responses, and logs a line of limited length for each. ``metrics`` get no text of clients."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Records a request that the application answered."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        path = errors.shortened(scope["path"], PATH_LIMIT)
        self._metrics.http_requests.labels(method, getattr(scope.get("route"), "path", OTHER), str(status)).inc()
        extra = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6)}
        logger.info("%s %r %s %.3fs", method, path, status, seconds, extra=extra)

    def refused(self, status: int, id: str, why: str) -> None:
        """Records a request that was refused before it reached the application; method and path may be unknown."""
        self._metrics.http_requests.labels(OTHER, OTHER, str(status)).inc()
        extra = {"status": status, "request_id": id}
        logger.info("%s %s", status, errors.shortened(why, PATH_LIMIT), extra=extra)


class AccessLogMiddleware:
    """Logs and counts every request.

    An ``x-request-id`` of up to 128 printable characters is used in the response and the log; otherwise one is created.
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
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = id
                for name in ("ignored-fields", "unenforced"):
                    if found := state.get(name.replace("-", "_")):
                        headers[f"x-llmk-{name}"] = ", ".join(found)
            await send(message)

        self._metrics.http_in_flight.inc()
        try:
            await self._app(scope, receive, marked)
        except Exception as error:
            if state["status"]:
                logger.exception("the request failed after its response had started")
                raise
            logger.exception("the request failed")
            await errors.reply(error)(scope, receive, marked)
        finally:
            self._metrics.http_in_flight.dec()
            self._log.answered(scope, state["status"], time.monotonic() - started)
