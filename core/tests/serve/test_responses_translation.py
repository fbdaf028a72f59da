"""Requests of the Responses API as chat bodies."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types.conversations import ConversationItem
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from llmk.api import RequestError
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.protocol.tokens import TokenizeRequest
from llmk.serve.responses import route, translation
from llmk.serve.responses.messages import sealed

USER = {"role": "user", "content": "Weather?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "get", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
FUNCTION = {"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": True}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def translated(**body: Any) -> dict[str, Any]:
    made = route.Respond().translate(body, {})
    assert made.kind == "chat"
    return dict(made.body)


def messages(*items: Any, **body: Any) -> list[dict[str, Any]]:
    found = translated(input=list(items), **body)
    ChatRequest.model_validate({name: value for name, value in found.items() if name in ("messages", "tools")})
    return list(found["messages"])


def test_a_text_is_a_users_message() -> None:
    assert translated(input="hi") == {"messages": [{"role": "user", "content": "hi"}]}


def test_instructions_are_one_system_message() -> None:
    first = [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}]
    found = messages(*first, USER, {"role": "developer", "content": "Now."}, instructions="You are a pirate.")
    assert found[0] == {"role": "system", "content": "You are a pirate.\n\nBe kind.\n\nBe brief."}
    assert [message["role"] for message in found] == ["system", "user", "system"]


def test_an_assistants_items_are_one_message() -> None:
    found = messages(USER, thought("Hm."), said("Let me see."), CALL, {**CALL, "call_id": "c2"}, OUTPUT, said("Sunny."))
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
    assert found[1]["reasoning_content"] == "Hm."
    assert found[1]["content"] == "Let me see."
    assert [call["id"] for call in found[1]["tool_calls"]] == ["c1", "c2"]
    assert found[2] == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


def test_what_follows_a_call_stays_before_its_output() -> None:
    found = messages(USER, CALL, said("Called."), OUTPUT)
    assert found[1]["content"] == "Called."
    assert found[2]["role"] == "tool"


def test_two_answers_stay_two_messages() -> None:
    assert len(messages(USER, said("One."), said("Two."))) == 3
    assert len(messages(USER, said("One."), thought("Hm."), said("Two."))) == 3


def test_a_call_that_broke_off() -> None:
    broken = {**CALL, "arguments": '{"a": ', "status": "incomplete"}
    assert len(messages(USER, broken, said("<call>"))) == 2
    found = messages(USER, broken, OUTPUT)
    assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == '{"a": '


def test_encoded_reasoning_comes_back() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("Grüße 💭")}
    assert messages(USER, item)[1] == {"role": "assistant", "reasoning_content": "Grüße 💭"}
    for foreign in ("gAAAAABo", "llmk1.***", sealed("x") + "!"):
        with pytest.raises(RequestError, match="was not made by llmk"):
            messages(USER, {**item, "encrypted_content": foreign})


def test_reasoning_without_text_is_no_message() -> None:
    assert len(messages(USER, {"type": "reasoning", "id": "rs_1", "summary": []})) == 1


def test_fields() -> None:
    found = translated(
        input="hi",
        model="m",
        max_output_tokens=9,
        temperature=0.5,
        top_k=3,
        seed=1,
        top_logprobs=2,
        tools=[FUNCTION],
        tool_choice={"type": "function", "name": "get"},
        parallel_tool_calls=False,
        reasoning={"effort": "none"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        user="u",
        metadata={"a": "b"},
        chat_template_kwargs={"enable_thinking": False},
    )
    function = {"name": "get", "parameters": {"type": "object"}, "strict": True}
    assert found == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "m",
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "get"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "none",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "user": "u",
        "metadata": {"a": "b"},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get"}]}
    choice = translated(input="hi", tools=[FUNCTION], tool_choice=allowed)["tool_choice"]
    assert choice["allowed_tools"]["tools"] == [{"type": "function", "function": {"name": "get"}}]


def test_a_tool_can_be_required_only_of_some() -> None:
    with pytest.raises(RequestError, match="there are no 'tools'"):
        translated(input="hi", tool_choice="required")


def test_references_are_returned_first() -> None:
    body = {"input": [{"type": "item_reference", "id": "msg_x"}, USER], "previous_response_id": "resp_1"}
    made = route.Respond().translate(body, {})
    assert made.kind == "info"
    assert made.options == {"references": {"previous_response_id": "resp_1", "items": ["msg_x"]}}
    given = {"request": body, "history": [{"role": "user", "content": "Before."}], "stored": {"msg_x": said("Old.")}}
    found = route.Respond(resolved=True).translate(given, {}).body["messages"]
    assert [message["content"] for message in found] == ["Before.", "Old.", "Weather?"]
    with pytest.raises(translation.NotFound, match="no stored item 'msg_x'"):
        route.Respond(resolved=True).translate({**given, "stored": {}}, {})


def test_tokens_of_an_input_are_counted() -> None:
    body = {"input": "hi", "instructions": "Be kind.", "tools": [FUNCTION]}
    made = route.CountTokens().translate(body, {})
    assert made.kind == "tokenize"
    TokenizeRequest.model_validate(dict(made.body))
    assert len(made.body["tools"]) == 1
    assert route.CountTokens().translate({**body, "tool_choice": "none"}, {}).body["tools"] == []
    shown = route.CountTokens().result({"count": 3}, {}, None)  # type: ignore[arg-type]
    assert shown == {"object": "response.input_tokens", "input_tokens": 3}


def test_stored_items_are_those_of_the_sdk_and_can_be_sent_again() -> None:
    sent = [
        USER,
        said("Yes."),
        thought("Hm."),
        CALL,
        OUTPUT,
        {**OUTPUT, "output": [{"type": "input_text", "text": "x"}]},
    ]
    made = route.Respond().translate({"input": sent}, {})
    stored = [msgspec.json.decode(text) for text in made.options["input"]]
    for item in stored:
        TypeAdapter(ResponseItem).validate_python(item)
        TypeAdapter(ConversationItem).validate_python(item)
    assert len({item["id"] for item in stored}) == len(stored)
    assert translated(input=stored)["messages"] == translated(input=sent)["messages"]
    assert translation.restored(stored)
