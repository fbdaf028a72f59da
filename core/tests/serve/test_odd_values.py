"""Every request is answered or refused: no value of any field is an internal error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
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
    """Just below the depth limit of a parser, code that handles the result may exceed the recursion limit."""
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


@pytest.mark.parametrize(
    ("path", "field", "wrong"),
    [
        (path, field, wrong)
        for path, (model, _) in BODIES.items()
        for field in model.model_fields
        for wrong in (None, {"role": "user", "content": [None] * 100}, [None] * 100)
    ],
)
def test_the_first_wrong_entry_of_a_list_ends_its_validation(path: str, field: str, wrong: Any) -> None:
    """Millions of errors take minutes to collect, and gigabytes."""
    model, body = BODIES[path]
    errors = 0
    try:
        model.model_validate({**body, field: [wrong] * 100})
    except ValidationError as error:
        errors = error.error_count()
    assert errors < 20


@pytest.mark.parametrize("prompt", [[5] * 100_000, [[5], [5] * 100_000], [5] * 512, [None] * 100_000])
def test_tokens_of_a_prompt_are_counted_before_they_are_looked_at(
    client: TestClient, prompt: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompletionRequest, "model_validate", None)
    error = client.post("/v1/completions", json={"prompt": prompt}).json()["error"]
    assert error["code"] in ("context_length_exceeded", "invalid_value"), error


def test_bad_words_are_bounded_by_what_a_step_compares(client: TestClient) -> None:
    body = {"prompt": "x", "max_tokens": 1, "bad_words": ["ab" * 40 + str(at) for at in range(100)]}
    assert client.post("/v1/completions", json=body).status_code == 200
    response = client.post("/v1/completions", json={**body, "n": 32})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "bad_words")
    assert "limits.bad_words_tokens" in error["message"]
