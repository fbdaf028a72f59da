"""Chat completions on the wire: whole, streamed, with thinking, calls and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted import AngleReasoning, BracketTools, ScriptedEngine
from sse import events, fold
from starlette.testclient import TestClient

from llmk.api import ToolCallEnd, ToolCallFailed
from llmk.serve.generation.parsing import Dialect, ParserKind

PATH = "/v1/chat/completions"
BODY = {"model": "org/scripted", "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def refused(client: TestClient, change: dict[str, Any]) -> dict[str, Any]:
    response = client.post(PATH, json={**BODY, **change})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


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


@pytest.mark.parametrize("arguments", ['{"at": ', "NaN", '{"at": Infinity}', "[" * 100_000])
def test_arguments_that_are_no_json_are_refused(client: TestClient, arguments: str) -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": arguments}}
    messages = [*BODY["messages"], {"role": "assistant", "tool_calls": [call]}, *BODY["messages"]]
    error = refused(client, {"messages": messages})
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


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
    options = {"chat_template_kwargs": {"enable_thinking": True}, "structured_outputs": {"choice": ["a"]}}
    client.post(PATH, json={**BODY, **options})
    assert seen[2].thinking is False, "its output starts with what the grammar says"


def test_tools_without_a_parser_are_refused(serve: Callable[..., TestClient]) -> None:
    client = serve(Dialect(why={"tool": "no parser claims the checkpoint"}))
    error = client.post(PATH, json={**BODY, "tools": TOOLS}).json()["error"]
    assert error["param"] == "tools"
    assert "no parser claims the checkpoint" in error["message"]


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


@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_stop_strings_do_not_act_in_thinking(client: TestClient, engine: ScriptedEngine, chunk: int) -> None:
    engine.script, engine.chunk = "(One\ntwo\n)\n\nIt is 4.\nThat is all.", chunk
    body = {**BODY, "stop": ["\n"], "n": 2}
    answer = client.post(PATH, json=body).json()
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"] == "One\ntwo\n"
        assert choice["message"]["content"] == "\n\nIt is 4."
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "\n")
    assert engine.calls[0].params.stop == ()
    if chunk < 50:
        assert engine.aborted == [(answer["id"], 0), (answer["id"], 1)]
        assert answer["usage"]["completion_tokens"] < 2 * len(engine.script)
    streamed = fold(events(client.post(PATH, json={**body, "stream": True}).text))
    for index, choice in enumerate(answer["choices"]):
        assert {"role": "assistant", **streamed[index]["message"]} == choice["message"]


def test_without_a_reasoning_parser_the_engine_looks_for_stop_strings(
    serve: Callable[..., TestClient], engine: ScriptedEngine
) -> None:
    serve(dialect=Dialect()).post(PATH, json={**BODY, "stop": "x"})
    assert engine.calls[0].params.stop == ("x",)


@pytest.mark.parametrize("chunk", [1, 50])
def test_calls_may_be_limited_to_one(client: TestClient, engine: ScriptedEngine, chunk: int) -> None:
    engine.script, engine.chunk = "Look: [look][see] Done.", chunk
    choice = client.post(PATH, json={**BODY, "tools": TOOLS, "parallel_tool_calls": False}).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["look"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Look: ", "tool_calls")
    assert len(engine.aborted) == (chunk == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_of_strict_tools_that_differ_are_reported(
    client: TestClient, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = "[look][see]"
    look = {"name": "look", "strict": True, "parameters": {"type": "object", "required": ["at"]}}
    tools = [{"type": "function", "function": look}, {"type": "function", "function": {"name": "see", "strict": True}}]
    response = client.post(PATH, json={**BODY, "tools": tools, "stream": stream})
    choice = events(response.text)[-1]["choices"][0] if stream else response.json()["choices"][0]
    wanted = {"index": 0, "code": "schema_mismatch", "message": "$: 'at' is a required property"}
    assert choice["tool_call_errors"] == [wanted]
    assert choice["finish_reason"] == "tool_calls"
    assert 'llmk_tool_call_errors_total{code="schema_mismatch"' in client.get("/metrics").text
    assert "strict" not in engine.calls[0].text


class BrokenTools(BracketTools):
    """Every call fails."""

    def push(self, text: str) -> list[Any]:
        found = super().push(text)
        return [
            ToolCallFailed(e.index, f"[call {e.index}]") if isinstance(e, ToolCallEnd) else e for e in found
        ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_call_is_text(serve: Callable[..., TestClient], engine: ScriptedEngine, stream: bool) -> None:
    engine.script = "a[look]b[see]c"
    client = serve(dialect=Dialect(tools=ParserKind("test.broken", BrokenTools)))
    response = client.post(PATH, json={**BODY, "tools": TOOLS, "stream": stream})
    choice = fold(events(response.text))[0] if stream else response.json()["choices"][0]
    assert choice["message"]["content"] == "a[call 0]b[call 1]c"
    assert choice["finish_reason"] == "stop"
    if not stream:
        assert "tool_calls" not in choice["message"]
        assert [error["code"] for error in choice["tool_call_errors"]] == ["invalid_call"] * 2


def test_what_libraries_send_back_is_taken(client: TestClient, engine: ScriptedEngine) -> None:
    call = {"id": "1", "type": "function", "index": 0, "function": {"name": "look", "arguments": "{}"}}
    echoed = {
        "id": "msg_1",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "parsed": None,
        "provider_specific_fields": {"a": 1},
        "reasoning": "hm",
        "reasoning_content": "hm",
        "reasoning_details": [{"type": "x"}],
        "cache_control": {"type": "ephemeral"},
    }
    part = {"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [part]},
        {"role": "assistant", "content": None, "tool_calls": [call], **echoed},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    assert client.post(PATH, json={"messages": messages}).status_code == 200
    assert engine.calls[0].text == "<user>q<assistant>hm[call look {}]<tool>r1<assistant>"
    messages[1] = {"role": "assistant", "content": "a", "reasoning": "hm", "refusal": "no"}
    assert client.post(PATH, json={"messages": messages[:2]}).status_code == 200
    assert engine.calls[1].text == "<user>q<assistant>ahm<assistant>"
    messages[1]["reasoning_content"] = "ha"
    assert refused(client, {"messages": messages[:2]})["param"] == "messages[1].reasoning"


def test_results_go_to_the_template_in_the_order_of_the_calls(client: TestClient, engine: ScriptedEngine) -> None:
    calls = [{"id": id, "function": {"name": f"f{id}", "arguments": "{}"}} for id in "ab"]
    results = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in "ba"]
    asked = [*BODY["messages"], {"role": "assistant", "tool_calls": calls}]
    assert client.post(PATH, json={"messages": [*asked, *results]}).status_code == 200
    assert "<tool>of aa<tool>of bb" in engine.calls[0].text
    unknown = {"role": "tool", "tool_call_id": "c", "content": "x"}
    assert refused(client, {"messages": [*asked, unknown]})["param"] == "messages[2].tool_call_id"
    assert refused(client, {"messages": [*BODY["messages"], unknown]})["param"] == "messages[1].tool_call_id"
    named = {"role": "tool", "tool_call_id": "a", "name": "fb", "content": "x"}
    assert refused(client, {"messages": [*asked, named]})["param"] == "messages[2].name"


def test_a_name_that_the_template_ignores_has_no_effect(client: TestClient, engine: ScriptedEngine) -> None:
    messages = [{"role": "user", "content": "q", "name": "Ann"}]
    assert client.post(PATH, json={"messages": messages}).status_code == 200
    assert engine.calls[0].text == "<user Ann>q<assistant>"
    engine.tokenizer.chat_templates["default"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert client.post(PATH, json={"messages": messages}).status_code == 200


@pytest.mark.parametrize("include", [False, True])
def test_every_chunk_may_have_the_usage_so_far(client: TestClient, include: bool) -> None:
    options = {"continuous_usage_stats": True, "include_usage": include}
    body = {**BODY, "stream": True, "stream_options": options}
    for path, change in ((PATH, {}), ("/v1/completions", {"prompt": "x"})):
        request = {**body, **change} if not change else {"stream": True, "stream_options": options, **change}
        chunks = events(client.post(path, json=request).text)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert 0 < counts[0] < counts[-1] == 12
        assert (chunks[-1]["choices"] == []) == include
