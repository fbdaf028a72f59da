"""The streams of the Responses, Messages and Ollama APIs are complete, and their folds are the complete responses, for
many requests of all kinds; also where the engine ends in the middle. A client that leaves ends its request."""

from __future__ import annotations

import json
import random
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import event_streams as streams
import pytest
from served import Served, until

pytestmark = pytest.mark.slow_file

Json = dict[str, Any]
PROMPTS = (
    "What is 17 + 25?",
    "What is the weather in Paris?",
    "Write a short story about a cat.",
    "Hi",
    "What is the weather in Rome and in Oslo?",
    "Say nothing.",
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Tells the current weather of a city."}
NUM_QUICK, NUM_FULL = 8, 120
"""Requests of each API, each of them streamed and complete."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # In bfloat16, what is computed again after an engine was killed may round to another token.
    server = Served(tmp_path_factory.mktemp("streams") / "log", "--port", "0", "--model.dtype", "float32")
    yield server
    server.close()


def read(served: Served, path: str, body: Json) -> str:
    """The text of an answer."""
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(served.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        found: str = response.read().decode()
    return found


def response_request(rng: random.Random) -> Json:
    body: Json = {"input": rng.choice(PROMPTS), "max_output_tokens": rng.choice((1, 2, 3, 5, 9, 17, 40, 120))}
    if rng.random() < 0.6:
        body["tools"] = [{"type": "function", **WEATHER, "parameters": CITY, "strict": rng.random() < 0.3}]
        body["tool_choice"] = rng.choice(("auto", "required", "none"))
        body["parallel_tool_calls"] = rng.random() < 0.7
    if rng.random() < 0.3:
        body["stop"] = rng.choice(("the", ".", "17", "</think>", "{"))
    if rng.random() < 0.3:
        body["top_logprobs"] = rng.choice((1, 3))
    if rng.random() < 0.5:
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    if rng.random() < 0.2:
        body["include"] = ["reasoning.encrypted_content"]
    if "tools" not in body and rng.random() < 0.3:
        body["text"] = {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": CITY}}
    return body | sampled(rng)


def message_request(rng: random.Random) -> Json:
    body: Json = {"model": "claude-x", "max_tokens": rng.choice((1, 2, 3, 5, 9, 17, 40, 120))}
    body["messages"] = [{"role": "user", "content": rng.choice(PROMPTS)}]
    if rng.random() < 0.6:
        body["tools"] = [{**WEATHER, "input_schema": CITY}]
        choice: Json = {"type": rng.choice(("auto", "any", "none"))}
        body["tool_choice"] = choice if choice["type"] == "none" else {
            **choice, "disable_parallel_tool_use": rng.random() < 0.3}  # fmt: skip
    if rng.random() < 0.3:
        body["stop_sequences"] = [rng.choice(("the", ".", "17", "{"))]
    if rng.random() < 0.5:
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024, "display": rng.choice(("summarized", "omitted"))}
    return body | {"temperature": 0}  # there is no seed


def ollama_request(rng: random.Random) -> Json:
    body: Json = {"model": "demo", "messages": [{"role": "user", "content": rng.choice(PROMPTS)}]}
    if rng.random() < 0.6:
        body["tools"] = [{"type": "function", "function": {**WEATHER, "parameters": CITY}}]
    if rng.random() < 0.5:
        body["think"] = rng.random() < 0.5
    options = {"num_predict": rng.choice((1, 2, 3, 5, 9, 17, 40, 120)), **sampled(rng)}
    if rng.random() < 0.3:
        options["stop"] = [rng.choice(("the", ".", "17", "{"))]
    if "tools" not in body and rng.random() < 0.3:
        body["format"] = rng.choice(("json", CITY))
    return {**body, "options": options}


def generate_request(rng: random.Random) -> Json:
    body = ollama_request(rng)
    del body["messages"]
    body.pop("tools", None)
    return {**body, "prompt": rng.choice(PROMPTS), "raw": "think" not in body and rng.random() < 0.3}


def sampled(rng: random.Random) -> Json:
    return {"temperature": rng.choice((0, 0.9)), "seed": rng.randrange(1000)}


OWN = re.compile(r"id|call_id|created_at|completed_at|.*_duration|cache.*_tokens|input_tokens")
"""What differs between two responses to the same request."""


def same(whole: Any) -> Any:
    """What two responses to the same request have in common."""
    if isinstance(whole, list):
        return [same(entry) for entry in whole]
    if isinstance(whole, dict):
        return {name: same(value) for name, value in whole.items() if not OWN.fullmatch(name)}
    return whole


APIS: dict[str, tuple[str, Callable[[random.Random], Json], Callable[[str], Json], Callable[[Json], None]]] = {
    "responses": (
        "/v1/responses",
        response_request,
        lambda text: streams.response_of(streams.events_of(text)),
        streams.check_response,
    ),
    "messages": (
        "/v1/messages",
        message_request,
        lambda text: streams.message_of(streams.events_of(text)),
        streams.check_message,
    ),
    "chat": ("/api/chat", ollama_request, lambda text: streams.answer_of(streams.lines_of(text)), streams.check_answer),
    "generate": (
        "/api/generate",
        generate_request,
        lambda text: streams.answer_of(streams.lines_of(text)),
        streams.check_answer,
    ),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("count", [NUM_QUICK, pytest.param(NUM_FULL, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_each_stream_is_complete_and_says_what_the_whole_answer_says(served: Served, api: str, count: int) -> None:
    path, make, fold, check = APIS[api]
    rng = random.Random(f"{api} {count}")
    for _ in range(count):
        body = make(rng)
        folded = fold(read(served, path, {**body, "stream": True}))
        whole = json.loads(read(served, path, {**body, "stream": False}))
        check(whole)
        assert same(folded) == same(whole), body


@pytest.mark.parametrize("api", APIS)
def test_a_client_that_leaves_ends_its_request(served: Served, api: str) -> None:
    path, make, _, _ = APIS[api]
    body = make(random.Random(1))
    for name in ("tools", "tool_choice", "text", "format"):
        body.pop(name, None)
    long = {"max_output_tokens": 900, "max_tokens": 900} if api in ("responses", "messages") else {}
    long = {name: value for name, value in long.items() if name in body}
    if "options" in body:
        body["options"] = {"num_predict": 900, "temperature": 2}
    elif api == "responses":
        body |= {"ignore_eos": True}
    content = json.dumps({**body, **long, "stream": True}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    for _ in range(4):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    until(lambda: served.metric("llmk_num_requests_running") == 0, 60, "requests of clients that left still run")


@pytest.mark.parametrize("api", APIS)
def test_a_stream_goes_on_after_the_engine_was_killed(
    tmp_path_factory: pytest.TempPathFactory, served: Served, api: str
) -> None:
    path, make, fold, check = APIS[api]
    rng = random.Random(7)
    body = make(rng)
    while body.get("max_output_tokens", body.get("max_tokens", body.get("options", {}).get("num_predict"))) != 120:
        body = make(rng)
    body.pop("text", None)
    if api == "responses":
        body = {"input": PROMPTS[2], "ignore_eos": True, "max_output_tokens": 300, "temperature": 0}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(served.url + path, json.dumps({**body, "stream": True}).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        received = response.readline()
        engine = served.engine()
        assert engine is not None
        engine.kill()
        received += response.read()
    folded = fold(received.decode())
    until(lambda: served.get("/health")[0] == 200, 60)
    whole = json.loads(read(served, path, {**body, "stream": False}))
    check(whole)
    assert same(folded) == same(whole)
