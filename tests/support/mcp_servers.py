"""A real MCP server, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer


class ToolServer:
    """Serves some tools over streamable HTTP. ``calls`` are what they were called with, ``headers`` those of
    requests."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self._server = uvicorn.Server(uvicorn.Config(self._app(), port=0, log_level="error", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    @property
    def url(self) -> str:
        """The endpoint."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/mcp"

    def __enter__(self) -> ToolServer:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(20)

    def _app(self) -> Any:
        tools = MCPServer("test")

        @tools.tool()
        def look() -> str:
            """Looks around."""
            self.calls.append(("look", {}))
            return "a tree"

        @tools.tool()
        def weather(city: str) -> str:
            """Tells the weather of a city."""
            self.calls.append(("weather", {"city": city}))
            return f"It is sunny in {city}."

        @tools.tool()
        def breaks() -> str:
            """Fails."""
            raise ValueError("it broke")

        @tools.tool()
        async def slow() -> str:
            """Takes long."""
            await asyncio.sleep(30)
            return "late"

        @tools.tool()
        def large() -> str:
            """Returns much."""
            return "x" * 3_000_000

        app = tools.streamable_http_app()

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
            await app(scope, receive, send)

        return noted
