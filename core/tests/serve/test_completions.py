"""Text completions on the wire."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save
from scripted import ScriptedEngine
from sse import events
from starlette.testclient import TestClient

from llmk.engine.wire.prompt import EmbeddingFormat

PATH = "/v1/completions"


def test_whole(client: TestClient, engine: ScriptedEngine) -> None:
    answer = client.post(PATH, json={"prompt": "hi"}).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    choice = {"index": 0, "text": "Hello there.", "logprobs": None, "finish_reason": "stop", "stop_reason": "."}
    assert answer["choices"] == [choice]
    assert engine.calls[0].params.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", ["ab"]), (["a", "b"], ["a", "b"]), ([97, 98], ["ab"]), ([[97], [98, 99]], ["a", "bc"])],
)
@pytest.mark.parametrize("n", [1, 2])
def test_prompts_of_every_form(
    client: TestClient, engine: ScriptedEngine, prompt: Any, expected: list[str], n: int
) -> None:
    answer = client.post(PATH, json={"prompt": prompt, "n": n, "echo": True}).json()
    assert sorted(call.text for call in engine.calls) == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(n * len(expected)))
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [f"{text}Hello there." for text in expected for _ in range(n)]
    assert answer["usage"]["prompt_tokens"] == sum(len(call.prompt) for call in engine.calls)
    assert answer["usage"]["completion_tokens"] == 12 * n * len(expected)


def test_logprobs(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script, engine.chunk = "abc", 2
    body = {"prompt": "x", "logprobs": 1}
    logprobs = client.post(PATH, json=body).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [{"A": -65.5, token: -0.25} for token in "abc"],
        "text_offset": [0, 1, 2],
    }
    chunks = events(client.post(PATH, json={**body, "stream": True}).text)
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0, 1], [2]]


@pytest.mark.parametrize("n", [1, 2])
def test_echo_with_logprobs_has_those_of_the_prompts(client: TestClient, engine: ScriptedEngine, n: int) -> None:
    engine.script, engine.chunk = "cd", 1
    body = {"prompt": ["xab", "y"], "logprobs": 0, "echo": True, "n": n, "add_special_tokens": False}
    choices = client.post(PATH, json=body).json()["choices"]
    assert engine.calls[0].params.prompt_logprobs == 0
    assert [choice["text"] for choice in choices] == ["xabcd"] * n + ["ycd"] * n
    assert choices[0]["logprobs"] == {
        "tokens": ["x", "a", "b", "c", "d"],
        "token_logprobs": [None, -0.125, -0.125, -0.25, -0.25],
        "top_logprobs": [None, {"a": -0.125}, {"b": -0.125}, {"c": -0.25}, {"d": -0.25}],
        "text_offset": [0, 1, 2, 3, 4],
    }
    assert choices[-1]["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
    chunks = events(client.post(PATH, json={**body, "stream": True}).text)
    parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == 0 and c["logprobs"]]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 1, 2, 3, 4]
    client.post(PATH, json={**body, "echo": False})
    assert engine.calls[-1].params.prompt_logprobs is None


def test_whole_is_the_fold_of_the_stream(client: TestClient) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "echo": True}
    whole = client.post(PATH, json=body).json()
    chunks = events(client.post(PATH, json={**body, "stream": True, "stream_options": {"include_usage": True}}).text)
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]


def test_an_error_in_one_prompt_ends_all(client: TestClient, engine: ScriptedEngine) -> None:
    engine.fail = RuntimeError("broken")
    assert client.post(PATH, json={"prompt": ["a", "b", "c"]}).status_code == 500
    assert engine.running == 0


def test_nothing_is_parsed(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "(thought)[look]!"
    assert client.post(PATH, json={"prompt": "x"}).json()["choices"][0]["text"] == "(thought)[look]!"


def given(length: int, size: int = 3) -> str:
    return base64.b64encode(save({"x": torch.arange(length * size).view(length, size).float()})).decode()


@pytest.fixture
def embedding(engine: ScriptedEngine) -> ScriptedEngine:
    """An engine that takes embeddings of three elements."""
    engine.info = replace(engine.info, embeddings=EmbeddingFormat(model="models.some", size=3))
    return engine


@pytest.mark.parametrize("prompt", [{}, {"prompt": ""}, {"prompt": None}])
@pytest.mark.parametrize("n", [1, 2])
def test_embeddings_in_place_of_prompts(client: TestClient, embedding: ScriptedEngine, prompt: Any, n: int) -> None:
    answer = client.post(PATH, json={**prompt, "prompt_embeds": [given(4), given(2)], "n": n}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Hello there."] * 2 * n
    assert answer["usage"]["prompt_tokens"] == 6
    first, second = (call.prompt for call in sorted(embedding.calls, key=lambda call: -len(call.prompt)))
    assert (first.token_ids, second.token_ids) == ([256] * 4, [256] * 2)
    (run,) = second.runs
    assert torch.frombuffer(bytearray(run.data), dtype=torch.float32).tolist() == [0, 1, 2, 3, 4, 5]
    whole = client.post(PATH, json={"prompt_embeds": given(4), "stream": True}).text
    assert "".join(chunk["choices"][0]["text"] for chunk in events(whole)) == "Hello there."


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"prompt": "x", "prompt_embeds": given(1)}, "prompt_embeds", "can't both be given"),
        ({"prompt_embeds": []}, "prompt_embeds", "is empty"),
        ({"prompt_embeds": ""}, "prompt_embeds", "is not a safetensors file"),
        ({"prompt_embeds": [given(1), "?"]}, "prompt_embeds", "is not base64"),
        ({"prompt_embeds": given(1), "echo": True}, "echo", "no text"),
        ({"prompt_embeds": given(2, 4)}, "prompt_embeds", "[2, 4]"),
        ({"prompt_embeds": given(512)}, None, "context"),
        ({"prompt_embeds": given(500), "max_tokens": 13}, "max_tokens", "context"),
        ({"prompt_embeds": [given(1)] * 2000}, "prompt_embeds", "limits.prompts"),
        ({"prompt_embeds": given(500), "n": 128, "max_tokens": 1}, None, ""),
        ({}, "prompt", "Field required"),
    ],
)
def test_embeddings_that_are_refused(
    client: TestClient, embedding: ScriptedEngine, body: Any, param: str | None, why: str
) -> None:
    response = client.post(PATH, json=body)
    if not why:
        assert response.status_code == 200
        return
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert why in error["message"]
    assert not embedding.calls


def test_embeddings_for_a_model_that_takes_none(client: TestClient, engine: ScriptedEngine) -> None:
    error = client.post(PATH, json={"prompt_embeds": "?"}).json()["error"]
    assert "takes token ids alone" in error["message"]
    assert error["param"] == "prompt_embeds"
