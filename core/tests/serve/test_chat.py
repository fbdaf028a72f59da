"""Chat completions on the wire: whole, streamed, with thinking, calls and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted import AngleReasoning, ScriptedEngine
from sse import events, fold
from starlette.testclient import TestClient

from llmk.serve.parsing import Dialect, ParserKind

PATH = "/v1/chat/completions"
BODY = {"model": "org/scripted", "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def test_whole(client: TestClient) -> None:
    answer = client.post(PATH, json=BODY).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "org/scripted"
    assert answer["system_fingerprint"] == "fp_0123456789ab"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there."},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": ".",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 19,
        "completion_tokens": 12,
        "total_tokens": 31,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_streamed_with_usage(client: TestClient) -> None:
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    response = client.post(PATH, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": ".",
    }
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == client.post(PATH, json=BODY).json()["usage"]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_streamed_without_usage(client: TestClient) -> None:
    chunks = events(client.post(PATH, json={**BODY, "stream": True}).text)
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    "script", ["(Hm. Well)Yes [look][see] then", "(only thought", "plain [unclosed", "(a)b(c)[d]e", ""]
)
@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("n", [1, 3])
def test_whole_is_the_fold_of_the_stream(
    client: TestClient, engine: ScriptedEngine, script: str, chunk: int, n: int
) -> None:
    engine.script, engine.chunk = script or " ", chunk
    body = {**BODY, "tools": TOOLS, "n": n, "logprobs": True, "top_logprobs": 2}
    whole = client.post(PATH, json=body).json()["choices"]
    streamed = fold(events(client.post(PATH, json={**body, "stream": True}).text))
    assert len(whole) == len(streamed) == n
    for choice in whole:
        folded = streamed[choice["index"]]
        message = choice["message"]
        assert (message["content"] or "") == folded["message"]["content"]
        assert message.get("reasoning_content") == folded["message"].get("reasoning_content")
        assert [call["function"] for call in message.get("tool_calls", [])] == list(folded["calls"].values())
        assert choice["finish_reason"] == folded["finish_reason"]
        assert choice["logprobs"]["content"] == folded["logprobs"]


def test_thinking_and_calls(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "(Hm)[look][see]"
    answer = client.post(PATH, json={**BODY, "tools": TOOLS}).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Hm"
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "look", "arguments": "{}"},
        {"name": "see", "arguments": "{}"},
    ]
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert calls[0]["id"] != calls[1]["id"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6


def test_a_call_that_was_cut_short_ends_for_length(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script, engine.finish_reason = "[look]and then", "length"
    assert client.post(PATH, json={**BODY, "tools": TOOLS}).json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("change", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(client: TestClient, engine: ScriptedEngine, change: dict[str, Any]) -> None:
    engine.script = "[look]"
    choice = client.post(PATH, json={**BODY, **change}).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("[look]", "stop")
    assert "[tool" not in engine.calls[0].text


def test_logprobs(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "ab"
    body = {**BODY, "logprobs": True, "top_logprobs": 1}
    content = client.post(PATH, json=body).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "a",
        "logprob": -0.25,
        "bytes": [97],
        "top_logprobs": [{"token": "A", "logprob": -65.5, "bytes": [65]}],
    }
    assert len(content) == 2
    assert client.post(PATH, json={**BODY, "logprobs": False}).json()["choices"][0]["logprobs"] is None


def test_the_token_that_ends_the_text_has_no_logprobs(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script, engine.stop_reason = "ab", None
    body = {**BODY, "logprobs": True}
    assert len(client.post(PATH, json=body).json()["choices"][0]["logprobs"]["content"]) == 1


def test_history_reaches_the_template(client: TestClient, engine: ScriptedEngine) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]},
        {"role": "user", "content": "q", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    assert client.post(PATH, json={"messages": messages}).status_code == 200
    expected = '<system>be\nkind<user Ann>q<assistant>hm[call look {"at": 1}]<tool>42call_1<assistant>'
    assert engine.calls[0].text == expected


def test_arguments_that_are_no_json_are_passed_on(client: TestClient, engine: ScriptedEngine) -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": '{"at": '}}
    messages = [*BODY["messages"], {"role": "assistant", "tool_calls": [call]}, *BODY["messages"]]
    assert client.post(PATH, json={"messages": messages}).status_code == 200
    assert '{\\"at\\": ' in engine.calls[0].text


def test_the_final_message_is_continued(client: TestClient, engine: ScriptedEngine) -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": "Well"}]
    assert client.post(PATH, json={"messages": messages, "continue_final_message": True}).status_code == 200
    assert engine.calls[0].text.endswith("<assistant>Well")


def test_a_parser_that_raises_fails_its_request_only(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "well!"
    response = client.post(PATH, json=BODY)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (500, "parser_error", "server_error")
    assert "test.angle" in error["message"]
    assert "exclamation" in error["message"]
    engine.chunk = 2
    last = events(client.post(PATH, json={**BODY, "stream": True}).text)[-1]
    assert last["error"]["code"] == "parser_error"
    assert engine.running == 0
    engine.script = "fine"
    assert client.post(PATH, json=BODY).status_code == 200


def test_a_parser_sees_its_request(serve: Callable[..., TestClient], engine: ScriptedEngine) -> None:
    seen = []

    def create(context: Any) -> Any:
        seen.append(context)
        return AngleReasoning(context)

    client = serve(Dialect(reasoning=ParserKind("test.angle", create, special_tokens=True)))
    client.post(PATH, json={**BODY, "n": 2, "chat_template_kwargs": {"enable_thinking": True}})
    assert len(seen) == 2
    assert seen[0].thinking is True
    assert seen[0].prompt_tail.endswith("<user>hi<assistant>True")
    assert not engine.calls[0].params.skip_special_tokens


def test_tools_without_a_parser_are_refused(serve: Callable[..., TestClient]) -> None:
    client = serve(Dialect(why={"tool": "nobody claims the checkpoint"}))
    error = client.post(PATH, json={**BODY, "tools": TOOLS}).json()["error"]
    assert error["param"] == "tools"
    assert "nobody claims the checkpoint" in error["message"]


def test_an_engine_that_fails_midway(client: TestClient, engine: ScriptedEngine) -> None:
    engine.fail = RuntimeError("secret")
    response = client.post(PATH, json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    last = events(client.post(PATH, json={**BODY, "stream": True}).text)[-1]
    assert last["error"]["code"] == "internal_error"


def test_a_model_without_a_template_says_so(serve: Callable[..., TestClient], engine: ScriptedEngine) -> None:
    engine.tokenizer.chat_templates = {}
    error = serve().post(PATH, json=BODY).json()["error"]
    assert "has no chat template" in error["message"]
    assert "/v1/completions" in error["message"]
