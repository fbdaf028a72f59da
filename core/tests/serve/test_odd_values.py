"""Whatever a client sends is answered or refused: no value of any field is an internal error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest

ODD: tuple[Any, ...] = (
    "", "x", "\u0000", "🙂", 0, -1, 1.5, 2**31, 2**63, -(2**63), 2**64, 10**30, 1e308, True, False,
    [], [None], [[]], [""], [-1], [2**40], [1.5], ["x", 1], {}, {"": ""}, {"9" * 5000: 1},
    {"x": {"y": []}}, {"type": []},
    [{"type": "text"}], [{"role": "user"}], [{"role": []}], [{"role": "user", "content": []}],
    [{"function": {}}], [{"type": "function"}],
)  # fmt: skip
BODIES = {
    "/v1/chat/completions": (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "x"}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [65]}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "field"),
    [(path, field) for path, (model, _) in BODIES.items() for field in (*model.model_fields, *model.refused)],
)
def test_odd_values(client: TestClient, path: str, field: str) -> None:
    _, body = BODIES[path]
    for value in ODD:
        response = client.post(path, json={**body, field: value})
        assert response.status_code in (200, 400, 404), (value, response.text)
        if response.status_code == 400:
            error = response.json()["error"]
            assert error["param"], (value, error)
            assert error["message"]
    for text in ("NaN", "Infinity", "-Infinity", '"\\ud800"', "[" * 3000 + "]" * 3000):
        content = json.dumps({name: given for name, given in body.items() if name != field})[:-1]
        content += f'{", " if len(content) > 1 else ""}"{field}": {text}}}'
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, (text, response.text)


@pytest.mark.parametrize("place", ["arguments", "parameters"])
def test_no_depth_of_a_value_is_an_error_of_the_server(client: TestClient, place: str) -> None:
    """Just below the depth that a reader refuses, whoever handles what was read may be out of stack."""
    statuses = set()
    for depth in [*range(700, 1000, 5), 10_000, 100_000]:
        deep = '{"a":' + "[" * depth + "]" * depth + "}"
        function = {"name": "f", "arguments": deep} if place == "arguments" else {"name": "f", "parameters": "DEEP"}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
        if place == "arguments":
            call = {"id": "a", "type": "function", "function": function}
            body["messages"].append({"role": "assistant", "tool_calls": [call]})
            body["messages"].append({"role": "tool", "tool_call_id": "a", "content": "b"})
        else:
            body["tools"] = [{"type": "function", "function": function}]
        sent = json.dumps(body).replace('"DEEP"', deep)
        answer = client.post("/v1/chat/completions", content=sent, headers={"content-type": "application/json"})
        statuses.add(answer.status_code)
    assert statuses <= {200, 400}
