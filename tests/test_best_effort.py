"""Schemas that can't be enforced wholly, on a server with the demo model: refused, or enforced as far as they can be
with a header that names the rest."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served

pytestmark = [pytest.mark.slow_file, pytest.mark.hook("llmk_routes")]

COLOR: dict[str, Any] = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}},
    "required": ["color"],
    "additionalProperties": False,
    "uniqueItems": True,
    "not": {"properties": {"color": {"const": "black"}}},
}
MESSAGES = [{"role": "user", "content": "Name a color."}]
CALLED = {"name": "pick", "description": "Picks a color."}
STRICT = {"type": "function", "function": {**CALLED, "parameters": COLOR, "strict": True}}


def formatted(strict: bool) -> dict[str, Any]:
    schema = {"name": "color", "schema": COLOR, "strict": strict}
    return {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": schema}}


CHAT = {"messages": MESSAGES}
TAG = {"structures": [{"begin": "<a>", "schema": COLOR, "end": "</a>"}], "triggers": ["<a>"]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", formatted(strict=False)),
    "field": ("/v1/chat/completions", {**CHAT, "structured_outputs": {"json": COLOR}}),
    "as text": ("/v1/chat/completions", {**CHAT, "guided_json": json.dumps(COLOR)}),
    "tags": ("/v1/chat/completions", {**CHAT, "structured_outputs": {"structural_tag": TAG}}),
    "completion": ("/v1/completions", {"prompt": "A color as JSON:", "structured_outputs": {"json": COLOR}}),
    "responses": (
        "/v1/responses",
        {"input": "Name a color.", "text": {"format": {"type": "json_schema", "name": "color", "schema": COLOR}}},
    ),
    "messages": (
        "/v1/messages",
        {**CHAT, "max_tokens": 250, "output_config": {"format": {"type": "json_schema", "schema": COLOR}}},
    ),
    "ollama": ("/api/chat", {**CHAT, "format": COLOR, "stream": False}),
    "generate": ("/api/generate", {"prompt": "Name a color.", "format": COLOR, "stream": False}),
}
STRICT_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", formatted(strict=True)),
    "required tool": ("/v1/chat/completions", {**CHAT, "tools": [STRICT], "tool_choice": "required"}),
    "tool": ("/v1/chat/completions", {**CHAT, "tools": [STRICT]}),
    "responses' tool": (
        "/v1/responses",
        {
            "input": "Name a color.",
            "tools": [{"type": "function", **CALLED, "parameters": COLOR, "strict": True}],
            "tool_choice": "required",
        },
    ),
    "messages' tool": (
        "/v1/messages",
        {
            **CHAT,
            "max_tokens": 250,
            "tools": [{**CALLED, "input_schema": COLOR, "strict": True}],
            "tool_choice": {"type": "any"},
        },
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("refuse") / "log", "--port", "0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def warning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("warn") / "log", "--port", "0", "--server.unenforceable", "warn")
    yield server
    server.close()


def sent(served: Served, path: str, body: dict[str, Any], **more: Any) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of a response."""
    content = json.dumps({"model": served.model, **body, **more}).encode()
    request = urllib.request.Request(served.url + path, content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, dict(response.headers), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def colors(value: Any) -> Iterator[str]:
    """The objects with a color that are somewhere in a response, as values or as their text."""
    if isinstance(value, dict):
        if "color" in value:
            yield value["color"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from colors(inner)
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        yield from colors(json.loads(value))


@pytest.mark.parametrize("name", [*REQUESTS, *(f"strict {name}" for name in STRICT_REQUESTS)])
def test_a_schema_is_refused_or_enforced_without_a_keyword(served: Served, name: str) -> None:
    path, body = STRICT_REQUESTS[name[7:]] if name.startswith("strict ") else REQUESTS[name]
    limit = {} if path.startswith(("/v1/messages", "/api", "/v1/responses")) else {"max_tokens": 250}
    status, headers, text = sent(served, path, body, **limit)
    assert status == 400
    assert "not" in text
    assert "uniqueItems" in text or "can't be enforced" in text
    assert "x-llmk-unenforced" not in headers
    status, headers, text = sent(served, path, body, **limit, unenforceable="warn")
    assert status == 200, text
    assert headers["x-llmk-unenforced"].split(", ") == ["not", "uniqueItems"]
    if name not in ("tags", "strict tool"):
        found = list(colors({key: value for key, value in json.loads(text).items() if key not in ("text", "tools")}))
        assert found
        assert set(found) <= {"red", "blue"}


def test_a_stream_has_the_header(served: Served) -> None:
    path, body = REQUESTS["chat"]
    status, headers, text = sent(served, path, body, unenforceable="warn", stream=True, max_tokens=60)
    assert (status, headers["x-llmk-unenforced"]) == (200, "not, uniqueItems")
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("name", REQUESTS)
def test_the_servers_default_is_for_what_is_not_strict(warning: Served, name: str) -> None:
    path, body = REQUESTS[name]
    status, headers, _ = sent(warning, path, body)
    assert (status, headers["x-llmk-unenforced"]) == (200, "not, uniqueItems")
    assert sent(warning, path, body, unenforceable="refuse")[0] == 400


@pytest.mark.parametrize("name", STRICT_REQUESTS)
def test_strict_schemas_are_refused_unless_the_request_says_otherwise(warning: Served, name: str) -> None:
    path, body = STRICT_REQUESTS[name]
    status, headers, text = sent(warning, path, body)
    assert status == 400
    assert "can't be enforced" in text
    assert "x-llmk-unenforced" not in headers
    assert sent(warning, path, body, unenforceable="warn")[0] == 200


def test_tools_that_are_not_strict_keep_more_than_names(warning: Served) -> None:
    tool = {"type": "function", "function": {**CALLED, "parameters": COLOR}}
    body = {**CHAT, "tools": [tool], "tool_choice": "required", "max_tokens": 250}
    status, headers, text = sent(warning, "/v1/chat/completions", body)
    assert (status, headers["x-llmk-unenforced"]) == (200, "not, uniqueItems")
    assert set(colors(json.loads(text)["choices"])) <= {"red", "blue"}


def test_what_is_no_schema_or_has_none_stays_an_error(served: Served) -> None:
    for bad in ({"json": {"type": "color"}}, {"json": "{"}, {"regex": "(?=a)b"}, {"grammar": "start: nothing"}):
        body = {**CHAT, "structured_outputs": bad, "unenforceable": "warn"}
        status, headers, text = sent(served, "/v1/chat/completions", body)
        assert status == 400, text
        assert "x-llmk-unenforced" not in headers
    status, headers, text = sent(served, "/v1/chat/completions", {**CHAT, "max_tokens": 4, "unenforceable": "warn"})
    assert status == 200, text
    assert "x-llmk-unenforced" not in headers


def test_a_large_schema_takes_a_bounded_time(served: Served) -> None:
    """Others are served meanwhile; the search ends by its limits, with the error that the schema has without it."""
    inner = {f"p{at}": {"type": "string", "pattern": f"(?={at})", "format": f"odd-{at}"} for at in range(900)}
    body = {**CHAT, "structured_outputs": {"json": {"properties": inner}}, "unenforceable": "warn", "max_tokens": 4}
    status, _, text = sent(served, "/v1/chat/completions", body)
    assert status in (200, 400), text
    assert status == 200 or "pattern" in text
