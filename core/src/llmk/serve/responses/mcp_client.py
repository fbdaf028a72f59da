"""Servers of the Model Context Protocol (https://modelcontextprotocol.io), whose tools responses may use.

Requests choose among the servers of the configuration. No URL of a request is ever called: a client that could name
one would reach what only this machine reaches.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from llmk.api import ConfigError, LlmkError, RequestError
from llmk.config.limits_section import LimitsSection
from llmk.config.mcp_server import McpServer

if TYPE_CHECKING:
    from mcp import ClientSession

T = TypeVar("T")
Json = dict[str, Any]
logger = logging.getLogger(__name__)

MOST_AT_ONCE = 32
"""Sessions with one server that run at once."""
KEPT_SECONDS = 60.0
"""How long the list of a server's tools is kept for other requests."""
_MORE_BYTES = 1 << 16
"""Bytes of a session besides those of what it transfers: headers of the protocol, capabilities."""


class McpTarget(msgspec.Struct, frozen=True, array_like=True):
    """A server as a request names it: by its label, or by its URL too. ``headers`` are the request's, in lower case."""

    label: str
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class McpFailed(LlmkError):
    """An MCP server failed, or is too slow."""

    code, http_status = "mcp_server_error", 424


class McpServers:
    """The servers of the configuration, by name. Raises :class:`~llmk.api.ConfigError` where there are some and the
    package ``mcp`` is not installed."""

    def __init__(self, servers: Mapping[str, McpServer], limits: LimitsSection) -> None:
        self._servers = servers
        self._limits = limits
        self._running = {name: asyncio.Semaphore(MOST_AT_ONCE) for name in servers}
        self._listed: dict[str, tuple[float, list[Json]]] = {}
        if servers:
            try:
                for module in ("httpx2", "mcp", "mcp.client.streamable_http"):
                    import_module(module)  # takes a while, in which no request could be served later
            except ImportError as error:
                hint = 'pip install "llmk-core[mcp]"'
                raise ConfigError(f"server.mcp: servers of MCP can't be used: {error}", hint=hint) from error

    def find(self, target: McpTarget) -> str:
        """The name of the server that a request means. Raises :class:`~llmk.api.RequestError`."""
        named = self._servers.get(target.label)
        if target.url:
            found = [name for name, server in self._servers.items() if _same(server.url, target.url)]
            if named is not None and target.label in found:
                return target.label
            if found:
                return found[0]
        elif named is not None:
            return target.label
        known = ", ".join(sorted(self._servers)) or "none"
        what = f"the MCP server {target.label!r}" + (f" at {target.url[:200]!r}" if target.url else "")
        hint = f"its operator can add it: [server.mcp.{target.label}] with its url"
        message = f"{what} is not one that this server may call (configured: {known})"
        raise RequestError(message, param="tools", hint=hint)

    async def tools(self, target: McpTarget) -> list[Json]:
        """The tools of a server, as its protocol has them. Raises :class:`~llmk.api.RequestError`, and
        :class:`McpFailed`."""
        name = self.find(target)
        operators = {header.lower() for header in self._servers[name].headers}
        own = bool(self._headers(name, target).keys() - operators)
        kept = self._listed.get(name)
        if kept is not None and not own and time.monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        tools = await self._run(name, target, self._list)
        if not own:
            self._listed[name] = time.monotonic(), tools
        return tools

    async def call(self, target: McpTarget, tool: str, arguments: Json) -> tuple[str, bool]:
        """What a tool returns, as text, and whether that is an error. Raises as :meth:`tools` does."""

        async def run(session: ClientSession) -> tuple[str, bool]:
            result = await session.call_tool(tool, arguments)
            return _text(result.model_dump(mode="json", by_alias=True)), bool(result.is_error)

        text, failed = await self._run(self.find(target), target, run)
        if (size := len(text.encode())) > self._limits.mcp_bytes:
            raise McpFailed(f"the output has {size} bytes; the limit is {self._limits.mcp_bytes} (limits.mcp_bytes)")
        return text, failed

    async def _list(self, session: ClientSession) -> list[Json]:
        listing = await session.list_tools()
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listing.tools]
        if len(tools) > self._limits.mcp_tools:
            raise McpFailed(f"it has {len(tools)} tools; the limit is {self._limits.mcp_tools} (limits.mcp_tools)")
        return tools

    async def _run(self, name: str, target: McpTarget, use: Callable[[ClientSession], Awaitable[T]]) -> T:
        server, over = self._servers[name], list[str]()
        try:
            async with (
                asyncio.timeout(server.seconds),
                self._running[name],
                self._session(name, target, over) as session,
            ):
                return await use(session)
        except TimeoutError:
            why = f"it took longer than {server.seconds:g} s (server.mcp.{name}.seconds)"
        except Exception as error:
            cause = _cause(error)
            why = cause.message if isinstance(cause, McpFailed) else f"{type(cause).__name__}: {cause}"
        why = next(iter(over), why)  # the client reports what ended a response as an error of its own, or not at all
        logger.warning("the MCP server %s failed: %s", name, why)
        raise McpFailed(f"the MCP server {name!r} failed: {why}"[:1000])

    @asynccontextmanager
    async def _session(self, name: str, target: McpTarget, over: list[str]) -> AsyncIterator[ClientSession]:
        """A session. Why a response was ended for its size is added to ``over``."""
        import httpx2
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        server, most = self._servers[name], self._limits.mcp_bytes * 4 + _MORE_BYTES
        http = httpx2.AsyncClient(
            headers=self._headers(name, target),
            timeout=server.seconds,
            event_hooks={"response": [_limited(most, over)]},
        )
        async with (
            http,
            streamable_http_client(server.url, http_client=http, max_sse_event_size=most) as (read, write, *_),
            ClientSession(read, write, read_timeout_seconds=server.seconds) as session,
        ):
            await session.initialize()
            yield session

    def _headers(self, name: str, target: McpTarget) -> dict[str, str]:
        """The operator's headers, and those of the request that the operator permits."""
        server = self._servers[name]
        own = {header.lower(): value for header, value in server.headers.items()}
        permitted = {header.lower() for header in server.client_headers}
        for header, value in target.headers:
            if header not in permitted:
                hint = f"its operator can permit it: server.mcp.{name}.client_headers"
                raise RequestError(f"the header {header[:80]!r} can't be sent to {name!r}", param="tools", hint=hint)
            own.setdefault(header, value)
        return own


def _limited(most: int, over: list[str]) -> Callable[[Any], Awaitable[None]]:
    """A hook that ends a response whose body is longer."""
    import httpx2

    class Limited(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in self._stream:
                size += len(part)
                if size > most:
                    over.append(f"a response has more than {most} bytes (limits.mcp_bytes)")
                    raise McpFailed(over[0])
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: Any) -> None:
        response.stream = Limited(response.stream)

    return limit


def _same(configured: str, requested: str) -> bool:
    return configured.rstrip("/") == requested.rstrip("/")


def _cause(error: BaseException) -> BaseException:
    """The first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(result: Json) -> str:
    """The texts of a result; what is no text, such as an image, is named."""
    parts = []
    for block in result.get("content") or ():
        resource = block.get("resource") or {}
        text = block.get("text") or resource.get("text")
        parts.append(text if isinstance(text, str) else f"[{block.get('type', 'content')}]")
    if not parts and result.get("structuredContent") is not None:
        return msgspec.json.encode(result["structuredContent"]).decode()
    return "\n".join(parts)
