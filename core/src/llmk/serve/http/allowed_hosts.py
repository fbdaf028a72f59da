"""Checks the ``Host`` header, as a protection against DNS rebinding: a page of another site, whose name was pointed to
this server, must not be able to read from it."""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from llmk.config.schema import ServerSection
from llmk.serve.http.errors import error_object
from llmk.serve.http.json_response import JsonResponse

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
PRIVATE = ("local", "internal", "localhost", "home.arpa")
"""Domains that are not in the public DNS."""
SHOWN = 100
_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(?::\d*)?")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``address``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class AllowedHosts:
    """Refuses requests (421) with a ``Host`` that is not allowed.

    Names of loopback, the bound address, and the names in ``server.allowed_hosts`` are always allowed. If
    ``allowed_hosts`` is empty and there are API keys, all names are, since a page of another site has no key. Without
    keys, IP addresses are allowed too, since DNS rebinding needs a name. If the bound address is not loopback, so are
    names outside the public DNS: who controls these is in this network and can connect directly. A request without
    ``Host`` is allowed, since browsers always send one.
    """

    def __init__(self, app: ASGIApp, section: ServerSection, *, with_keys: bool = False) -> None:
        self._app = app
        listed = {host.lower().strip("[]").rstrip(".") for host in section.allowed_hosts}
        self._any = "*" in listed or ((with_keys or bool(section.api_keys)) and not listed)
        self._names = LOOPBACK | listed | {section.host.lower(), socket.gethostname().lower()}
        self._addresses = not listed
        self._private = not listed and not is_loopback(section.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" and not self._any else ""
        if host and not self.serves(host):
            message = f"the host {host[:SHOWN]!r} is not served here; if it should be, add it to server.allowed_hosts"
            await JsonResponse(error_object(message, 421), 421)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def serves(self, host: str) -> bool:
        """Whether a ``Host`` header is allowed. Its time does not depend on the number of names."""
        found = _HOST.fullmatch(host.lower())
        name = found["name"].strip("[]").rstrip(".") if found else ""
        if self._any or name in self._names or name.endswith(".localhost"):
            return True
        if self._addresses and _is_address(name):
            return True
        return self._private and bool(name) and ("." not in name or name.endswith(tuple(f".{one}" for one in PRIVATE)))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
