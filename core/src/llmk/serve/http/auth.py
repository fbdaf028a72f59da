"""API keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from llmk.serve.http.errors import error_object
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.listener import network_of

OPEN_PATHS = frozenset({"/health", "/ping"})
TENANT_DIGITS = 16


class ApiKeys:
    """Admits requests with one of ``keys``, or one of which ``find`` has the account by its digest; ``/health`` and
    ``/ping`` are open.

    Keys are looked up by their SHA-256: what timing reveals of a digest leads to no key, and ten thousand keys take no
    longer than one. The first ``TENANT_DIGITS`` hexadecimal digits of the digest are the request's tenant.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str], find: Callable[[str], Any] | None = None) -> None:
        self._app = app
        self._digests = frozenset(_digest(key.encode()) for key in keys if key)
        self._find = find or (lambda digest: None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        digest = _given(Headers(scope=scope))
        account = self._find(digest)
        tenant = digest[:TENANT_DIGITS] if account is not None or digest in self._digests else ""
        if scope["type"] != "http" or (scope["path"] not in OPEN_PATHS and not tenant):
            message = "a valid API key is needed: send the header 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'"
            await JsonResponse(error_object(message, 401), 401, {"www-authenticate": "Bearer"})(scope, receive, send)
            return
        scope.setdefault("state", {}).update(tenant=tenant, account=account)
        await self._app(scope, receive, send)


def _given(headers: Headers) -> str:
    """The digest of the key that a request has, else ``""``."""
    scheme, _, key = headers.get("authorization", f"bearer {headers.get('x-api-key', '')}").partition(" ")
    return _digest(key.strip().encode("latin-1")) if scheme.lower() == "bearer" and key.strip() else ""


def tenant_of(scope: Scope) -> str:
    """The tenant of a request: by its API key, else by the client's address."""
    address, _ = scope.get("client") or ("", 0)
    return str(scope.get("state", {}).get("tenant") or network_of(address))


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
