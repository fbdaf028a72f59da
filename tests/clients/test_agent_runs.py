"""Conversations of an agent framework end with llmk as they do with a scripted reference server."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "core/tests/serve")]
import live
from dialects import make
from environments import CLIENTS, Unavailable
from scripted import InlineWorkers, ScriptedEngine

from llmk.config.schema import ServerSection
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.service import Service

CALLS = 10
IDS = itertools.count()


@dataclass(frozen=True)
class Turn:
    """What the assistant writes: a text, and calls with their arguments."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def _one(number: int) -> tuple[str, dict[str, Any]]:
    odd = {"text": f'{number} "quoted" \\ <b>ü</b>\n</s>', "tags": ["a", "}", "😀"][: number % 4]}
    choices = (("get_weather", {"city": "Paris"[: number + 1]}), ("add", {"a": number, "b": -1}), ("note", odd))
    return choices[number % 3]


def _split(sizes: tuple[int, ...], text: str = "") -> list[Turn]:
    calls, turns = [_one(number) for number in range(CALLS)], []
    for size in sizes:
        turns.append(Turn(text, tuple(calls[:size])))
        calls = calls[size:]
    return [*turns, Turn("All is done.")]


SCRIPTS = (_split((1,) * CALLS), _split((2,) * 5), _split((1, 3, 6), "Let me look."))


def turn_of(conversation: int, results: int) -> Turn:
    """The turn after so many results of tools."""
    before = 0
    for turn in SCRIPTS[conversation]:
        if before == results:
            return turn
        before += len(turn.calls)
    raise AssertionError(f"no turn after {results} results")


class Reference(BaseHTTPRequestHandler):
    """Streams the scripts as OpenAI's API does."""

    def do_POST(self) -> None:
        """Answers a chat."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["stream"]
        asked = next(re.findall(r"\d+", str(m["content"])) for m in body["messages"] if m["role"] == "user")
        turn = turn_of(int(asked[0]), sum(message["role"] == "tool" for message in body["messages"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in self._deltas(turn):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "demo", "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _deltas(self, turn: Turn) -> Iterator[tuple[dict[str, Any], str | None]]:
        yield {"role": "assistant", "content": ""}, None
        for word in re.findall(r"\s*\S+", turn.text):
            yield {"content": word}, None
        for index, (name, arguments) in enumerate(turn.calls):
            id = f"call_{next(IDS)}"
            yield {"tool_calls": [_call(index, id=id, type="function", function={"name": name, "arguments": ""})]}, None
            for piece in re.findall(r"(?s).{1,5}", json.dumps(arguments)):
                yield {"tool_calls": [_call(index, function={"arguments": piece})]}, None
        yield {}, "tool_calls" if turn.calls else "stop"

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet."""


def _call(index: int, **fields: Any) -> dict[str, Any]:
    return {"index": index, **fields}


class Writer(ScriptedEngine):
    """An engine whose model writes the scripts in the dialect ``hermes``, a few characters at a time."""

    async def generate(self, prompt: Any, params: Any, context: Any) -> AsyncGenerator[Any, None]:
        """Writes the turn that the prompt is for."""
        text = self.tokenizer.decode(prompt)
        conversation = int(re.findall(r"<user>conversation (\d)", text)[0])
        turn = turn_of(conversation, text.count("<tool"))
        calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in turn.calls]
        self.script = turn.text + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        async for delta in super().generate(prompt, params, context):
            yield delta


async def _run(python: str, url: str) -> Any:
    environment = {**os.environ, "LLMK_URL": url, "LLMK_MODEL": "demo"}
    command = (python, str(Path(__file__).parent / "python/agent_runs.py"))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    out, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()[-4000:]
    return json.loads(out.decode().strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_conversations_end_as_with_the_reference() -> None:
    client = next(client for client in CLIENTS if client.name == "pydantic-ai")
    try:
        python = client.command()[0]
    except Unavailable as error:
        pytest.skip(str(error))
    reference = ThreadingHTTPServer(("127.0.0.1", 0), Reference)
    threading.Thread(target=reference.serve_forever, daemon=True).start()
    expected = asyncio.run(_run(python, f"http://127.0.0.1:{reference.server_port}"))
    reference.shutdown()
    reference.server_close()
    assert [sum(event[0] == "call" for event in found["events"]) for found in expected] == [CALLS] * 3
    assert {found["output"] for found in expected} == {"All is done."}

    engine: Any = Writer(model_name="demo")
    engine.info = replace(engine.info, max_model_len=100_000)
    dialect = Dialect(tools=ParserKind("test.hermes", lambda context: make("tools/hermes", context)))
    service = Service(engine, dialect, ServerSection(), InlineWorkers(engine, dialect))  # type: ignore[arg-type]
    found: list[Any] = []

    async def scenario(served: live.Live) -> None:
        host, port = served.address
        found.append(await _run(python, f"http://{host}:{port}"))

    live.run(scenario, service, seconds=150)
    for ours, theirs in zip(found[0], expected, strict=True):
        for event, wanted in zip(ours["events"], theirs["events"], strict=True):
            assert event == wanted
        assert ours == theirs
