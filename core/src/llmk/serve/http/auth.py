"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from llmk.serve.http.errors import error_object
from llmk.serve.http.json_response import JsonResponse
from llmk.serve.http.listener import network_of

OPEN_PATHS = frozenset({"/health", "/ping"})
TENANT_DIGITS = 16


class ApiKeys:
    """Admits requests with one of ``keys``; ``/health`` and ``/ping`` are open.

    The digest is compared with all known digests in constant time, so that timing reveals nothing about a key. The
    first ``TENANT_DIGITS`` hexadecimal digits of the digest are the request's tenant.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys if key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(Headers(scope=scope))
        if scope["type"] != "http" or (scope["path"] not in OPEN_PATHS and not tenant):
            message = "a valid API key is needed: send the header 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'"
            await JsonResponse(error_object(message, 401), 401, {"www-authenticate": "Bearer"})(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, headers: Headers) -> str:
        """The tenant of a valid key, else ``""``."""
        scheme, _, key = headers.get("authorization", f"bearer {headers.get('x-api-key', '')}").partition(" ")
        given = _digest(key.strip().encode("latin-1"))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return given.hex()[:TENANT_DIGITS] if scheme.lower() == "bearer" and any(matches) else ""


def tenant_of(scope: Scope) -> str:
    """The tenant of a request: by its API key, else by the client's address."""
    address, _ = scope.get("client") or ("", 0)
    return str(scope.get("state", {}).get("tenant") or network_of(address))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
