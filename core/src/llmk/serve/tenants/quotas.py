"""Refuses requests of keys that are over their quotas, and says in every response what is left."""

from __future__ import annotations

import logging
import math
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmk.serve.http.errors import error_object
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.tenants.account import Account, OverQuota
from llmk.serve.tenants.ledger import Ledger

logger = logging.getLogger(__name__)

FREE_PATHS = frozenset({"/tokenize", "/detokenize"})
"""Routes of which no request is counted: they run no model."""


class Quotas:
    """Counts requests that post something, by the account that :class:`~llmk.serve.http.auth.ApiKeys` has found."""

    def __init__(self, app: ASGIApp, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        account: Account | None = scope.get("state", {}).get("account")
        if account is None or scope["method"] != "POST" or scope["path"] in FREE_PATHS:
            await self._app(scope, receive, send)
            return
        refusal = account.admit(time.time())
        if refusal is not None:
            await _refused(account, refusal)(scope, receive, send)
            return
        self._ledger.touch(account)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(account.headers(time.time()))
            await send(message)

        try:
            await self._app(scope, receive, marked)
        finally:
            account.leave()


def _refused(account: Account, refusal: OverQuota) -> JsonResponse:
    """429, as OpenAI answers: ``insufficient_quota`` where waiting doesn't help."""
    message, code, headers = refusal.message, "rate_limit_exceeded", account.headers(time.time())
    if refusal.seconds:
        wait = max(1, math.ceil(refusal.seconds))
        message, headers = f"{message}; try again in {wait} s", headers | {"retry-after": str(wait)}
    else:
        message, code = f"{message}; the operator can raise or reset it", "insufficient_quota"
    logger.info("%s is over its quota of %s", account.key.name, refusal.quota)
    body = error_object(message, 429, code=code)
    if not refusal.seconds:
        body["error"]["type"] = code
    return JsonResponse(body, 429, headers)
