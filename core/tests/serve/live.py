"""A server on a port, and raw connections to it: for what happens below HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from llmk.serve import lifecycle
from llmk.serve.http.tls import Tls
from llmk.serve.server import Server
from llmk.serve.service import Service

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()


class Live:
    """A server of ``service`` in this event loop."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self.tls = Tls.of(config)
        self.listener = lifecycle.bind("127.0.0.1", 0)
        self.listener.most = config.max_connections
        self.listener.most_per_client = config.max_connections_per_client
        self.listener.speaks_tls = self.tls is not None
        self.address = self.listener.getsockname()[:2]
        self.server = Server(service, self.tls)
        self.writers: list[asyncio.StreamWriter] = []
        self.task = asyncio.create_task(self.server.serve([self.listener]))

    async def connect(self, sent: bytes = b"", **options: Any) -> asyncio.StreamReader:
        """A connection over which ``sent`` was sent."""
        reader, writer = await asyncio.open_connection(*self.address, **options)
        self.writers.append(writer)
        writer.write(sent)
        return reader

    async def ask(self, head: str, body: bytes = b"") -> Answer:
        """The answer to a whole request."""
        return await Answer.read(await self.connect(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body))

    async def get(self, path: str = "/health") -> Answer:
        """The answer to a GET request on a connection of its own."""
        return await self.ask(f"GET {path} HTTP/1.1\nhost: localhost\nconnection: close")

    async def stop(self) -> None:
        """Ends the server at once."""
        for writer in self.writers:
            writer.close()
        self.server.stop()
        self.server.stop()
        await self.task


class Answer:
    """A response, read from a connection."""

    def __init__(self, head: bytes, body: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.body = body

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> Answer:
        """The next response of a connection; which must have a content-length."""
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
        answer = cls(head, b"")
        answer.body = await reader.readexactly(int(answer.headers["content-length"]))
        return answer

    @property
    def error(self) -> dict[str, Any]:
        """The error object."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def run(scenario: Callable[[Live], Awaitable[None]], service: Service, seconds: float = 60) -> None:
    """Runs a scenario against a server of ``service``."""

    async def main() -> None:
        async with asyncio.timeout(seconds):
            live = Live(service)
            while not live.server.started:
                await asyncio.sleep(0.01)
            try:
                await scenario(live)
            finally:
                await live.stop()

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    """Waits for ``holds``."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def post(length: int | str = len(BODY), path: str = CHAT, *more: str) -> bytes:
    """The head of a POST request."""
    lines = (f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", f"content-length: {length}")
    return "\r\n".join((*lines, *more, "", "")).encode()
