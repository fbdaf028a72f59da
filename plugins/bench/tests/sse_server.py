"""A server of OpenAI's streams whose delays are known: it waits, then sends a token at a time.

python sse_server.py PORT FIRST_SECONDS TOKEN_SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

WORD = " word"


class SseServer:
    """The first token of each answer comes ``first`` seconds after its request, each further one ``each`` later. A
    prompt with the word ``fail`` gets 503, one with ``break`` is cut off after two tokens."""

    def __init__(self, first: float = 0.0, each: float = 0.0) -> None:
        self.first, self.each = first, each
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0

    async def start(self, port: int = 0) -> asyncio.Server:
        """Listens."""
        return await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=4096)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                at = asyncio.get_running_loop().time()
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                await self._answer(head.split(b" ", 2), body, at, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, words: list[bytes], body: bytes, at: float, writer: asyncio.StreamWriter) -> None:
        if words[0] == b"GET":
            return _plain(writer, 200, {"object": "list", "data": [{"id": "words", "object": "model"}]})
        asked = json.loads(body)
        self.bodies.append(asked)
        text = str(asked.get("prompt") or asked.get("messages"))
        if "fail" in text:
            return _plain(writer, 503, {"error": {"message": "no"}})
        chats = b"chat" in words[1]
        count = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        if not asked.get("stream"):
            choice = {"index": 0, "text": WORD, "message": {"role": "assistant", "content": WORD}}
            return _plain(writer, 200, {"choices": [choice], "usage": _usage(text, 1)})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(count):
            due = at + self.first + number * self.each
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            piece = {"delta": {"content": WORD}} if chats else {"text": WORD}
            _event(writer, {"choices": [{"index": 0, **piece, "finish_reason": None}]})
            if "break" in text and number == 1:
                raise ConnectionError
            await writer.drain()
        last = {"delta": {}} if chats else {"text": ""}
        _event(writer, {"choices": [{"index": 0, **last, "finish_reason": "length"}]})
        _event(writer, {"choices": [], "usage": _usage(text, count)})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        return await writer.drain()


def _usage(text: str, count: int) -> dict[str, int]:
    given = len(text.split())
    return {"prompt_tokens": given, "completion_tokens": count, "total_tokens": given + count}


def _event(writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
    data = b"data: " + json.dumps({"id": "1", "object": "chunk", "model": "words", **chunk}).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _plain(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


async def main(port: str, first: str, each: str) -> None:
    """Serves until it is killed."""
    async with await SseServer(float(first), float(each)).start(int(port)) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
