"""Requests of Anthropic's API in OpenAI's format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmk.api import RequestError, TranslatedRequest
from llmk_anthropic.messages import CountTokens, Messages

HI = [{"role": "user", "content": "Hi"}]
CACHE = {"type": "ephemeral", "ttl": "1h"}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Zürich"}}


def translated(**fields: Any) -> TranslatedRequest:
    return Messages().translate({"model": "demo", "max_tokens": 9, "messages": HI, **fields}, {})


def body(**fields: Any) -> Any:
    return translated(**fields).body


def test_the_least_request() -> None:
    made = translated()
    assert made.kind == "chat"
    assert made.body == {"model": "demo", "max_tokens": 9, "messages": HI}
    assert (made.stream, made.thinking, made.fit_max_tokens) == (False, False, True)


def test_sampling_and_stops_keep_their_meaning() -> None:
    made = body(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["END"], stream=True)
    assert made["temperature"] == 0.5
    assert (made["top_p"], made["top_k"], made["stop"]) == (0.9, 5, ["END"])
    assert "stream" not in made
    assert translated(stream=True).stream


def test_system_prompts_are_one_message() -> None:
    assert body(system="Be short.")["messages"][0] == {"role": "system", "content": "Be short."}
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f;"},
        {"type": "text", "text": "You are an agent.", "cache_control": CACHE},
    ]
    assert body(system=blocks)["messages"] == [{"role": "system", "content": "You are an agent."}, *HI]
    two = body(system=[blocks[1], {"type": "text", "text": "Be short."}])["messages"][0]["content"]
    assert two == [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Be short."}]


def test_a_turn_with_tools() -> None:
    turn = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": CACHE}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I need a tool.", "signature": "of any server"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Let me see.", "citations": None},
                {**CALL, "caller": {"type": "direct"}},
                {**CALL, "id": "toolu_2"},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "And?"}, result("toolu_1", "sunny")]},
        {"role": "user", "content": [result("toolu_2", [{"type": "text", "text": "gone"}], is_error=True)]},
    ]
    asked, called, first, second, last = body(messages=turn, tools=[WEATHER])["messages"]
    assert asked == {"role": "user", "content": "Weather?"}
    assert (called["content"], called["reasoning_content"]) == ("Let me see.", "I need a tool.")
    assert [call["id"] for call in called["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich"}
    assert first == {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}
    assert second == {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: gone"}
    assert last == {"role": "user", "content": "And?"}


def result(id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, "cache_control": CACHE, **more}


def test_texts_that_are_not_text_blocks_are_read() -> None:
    found = {"type": "search_result", "source": "a.md", "title": "A", "content": [{"type": "text", "text": "found"}]}
    source = {"type": "text", "media_type": "text/plain", "data": "of it"}
    document = {"type": "document", "title": "T", "source": source, "citations": {"enabled": True}}
    (message,) = body(messages=[{"role": "user", "content": [found, document]}])["messages"]
    assert [part["text"] for part in message["content"]] == ["A\na.md\nfound", "T\nof it"]


def test_a_last_message_of_the_assistant_is_continued() -> None:
    assert body(messages=[*HI, {"role": "assistant", "content": "I am"}])["continue_final_message"] is True
    counted = CountTokens().translate({"model": "m", "messages": [*HI, {"role": "assistant", "content": "I"}]}, {})
    assert counted.body["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_tool_choices(choice: Any, expected: dict[str, Any]) -> None:
    made = body(tools=[{**WEATHER, "type": "custom", "strict": True, "cache_control": CACHE}], tool_choice=choice)
    assert {name: made[name] for name in made if name in ("tool_choice", "parallel_tool_calls")} == expected
    (tool,) = made["tools"]
    assert tool["type"] == "function"
    assert tool["function"]["parameters"] == WEATHER["input_schema"]
    assert tool["function"]["strict"] is True


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, True),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
        ({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}}, "low"),
    ],
)
def test_thinking_is_a_wish(fields: dict[str, Any], expected: bool | str) -> None:
    assert translated(**fields).thinking == expected


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_formats_are_schemas(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format = {"type": "json_schema", "schema": schema}
    made = body(**{name: {"format": format} if name == "output_config" else format})
    assert made["response_format"]["json_schema"]["schema"] == schema


def test_what_agents_send_by_default_is_taken() -> None:
    made = body(
        max_tokens=32000,
        betas=["interleaved-thinking-2025-05-14"],
        metadata={"user_id": "user_1_account__session_2"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        service_tier="auto",
        container=None,
        mcp_servers=[],
        cache_control=CACHE,
        tools=[{**WEATHER, "eager_input_streaming": True, "defer_loading": True}],
    )
    assert set(made) == {"model", "max_tokens", "messages", "tools"}


def test_a_message_of_the_system_sets_the_effort_of_its_turn() -> None:
    thinking = {"type": "adaptive"}
    low = {"role": "system", "output_config": {"effort": "low"}}
    made = translated(messages=[*HI, low], thinking=thinking, output_config={"effort": "max"})
    assert (made.thinking, made.body["messages"]) == ("low", HI)
    later = [*HI, low, {"role": "assistant", "content": "Yes"}, *HI, system(output_config={"effort": "medium"})]
    assert translated(messages=later, thinking=thinking).thinking == "medium"
    assert translated(messages=later, thinking={"type": "disabled"}).thinking is False


def test_a_message_of_the_system_may_be_for_one_turn() -> None:
    hint = {"role": "system", "content": "Hurry.", "clear_at": "next_user_message"}
    assert [m["role"] for m in body(messages=[*HI, hint])["messages"]] == ["user", "system"]
    later = [*HI, hint, {"role": "assistant", "content": "Yes"}, *HI]
    assert [m["role"] for m in body(messages=later)["messages"]] == ["user", "assistant", "user"]
    two = body(messages=[*HI, hint, *HI])["messages"]
    assert two == [{"role": "user", "content": [{"type": "text", "text": "Hi"}] * 2}]


def test_messages_of_the_system_change_the_tools() -> None:
    def names(*messages: Any, tools: Any = (WEATHER,)) -> list[str]:
        made = body(messages=list(messages), tools=list(tools))
        assert "system" not in [message["role"] for message in made["messages"]]
        return [tool["function"]["name"] for tool in made.get("tools", ())]

    removed = system({"type": "tool_removal", "tool": NAMED, "cache_control": CACHE})
    added = system({"type": "tool_addition", "tool": NAMED})
    look = {"type": "tool_definition", "definition": {"name": "look", "input_schema": {"type": "object"}}}
    defined = system({"type": "tool_addition", "tool": look})
    assert names(*HI, added) == ["get_weather"]
    assert names(*HI, removed) == []
    assert names(*HI, removed, added) == ["get_weather"]
    assert names(*HI, defined, removed) == ["look"]
    assert names(*HI, defined, tools=()) == ["look"]


def test_names_of_anthropic_s_models_are_the_served_model() -> None:
    assert "model" not in body(model="claude-sonnet-4-5")


def said(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def system(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks), **fields}


NAMED = {"type": "tool_reference", "name": "get_weather"}
CALLED = [*HI, {"role": "assistant", "content": [CALL]}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_tokens": None}, "max_tokens", "Field required"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_token": 1}, "max_token", "unknown field 'max_token'; did you mean 'max_tokens'?"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"container": "c_1"}, "container", "'container' is not supported: there are no containers"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "'mcp_servers' is not supported"),
        ({"thread": {"type": "create"}}, "thread", "thread: no conversation is stored; send all messages"),
        (said(IMAGE), "messages.0.content.0", "'image' can't be read"),
        (
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "content": [CALL]},
                    {"role": "user", "content": [result("toolu_1", [IMAGE])]},
                ]
            },
            "messages.2.content.0.content.0",
            "'image' can't be read: it needs a vision model",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": ""}}]}
                ]
            },
            "messages.0.content.0.source",
            "needs a vision model",
        ),
        (
            said({"type": "server_tool_use"}),
            "messages.0.content.0",
            "runs at Anthropic",
        ),
        (said({"type": "video"}), "messages.0.content.0", "'video'"),
        (
            said({"type": "text"}),
            "messages.0.content.0.text",
            "Field required",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'user', 'assistant' or 'system'"),
        (
            said(CALL),
            "messages.0.content.0",
            "can't have blocks of type 'tool_use'",
        ),
        (
            said(result("x", "")),
            "messages.0.content.0.tool_use_id",
            "its blocks: none",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "content": [CALL]}]},
            "messages.1",
            "results of its 'tool_use' blocks",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0",
            "the tool 'web_search' of type 'web_search_20250305' is Anthropic's own",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice", "names the tool 'x'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "needs 'tools'"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.name", "two tools are called 'get_weather'"),
        ({"messages": [{"role": "user"}]}, "messages.0", "a message of role user needs 'content'"),
        (
            {"messages": [{**HI[0], "clear_at": "never"}]},
            "messages.0",
            "a message of role user can't have 'clear_at'",
        ),
        (said({"type": "tool_removal", "tool": NAMED}), "messages.0.content.0", "can't have blocks of type 'tool_r"),
        (
            {"messages": [*HI, system({"type": "tool_addition", "tool": NAMED})]},
            "messages.1.content.0.tool.name",
            "there is no tool 'get_weather', neither in 'tools' nor in a message before",
        ),
        (
            {
                "tools": [WEATHER],
                "messages": [*HI, system({"type": "tool_removal", "tool": NAMED})],
                "tool_choice": {"type": "any"},
            },
            "tool_choice",
            "needs 'tools'",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens", "valid integer"),
        ({"temperature": "hot"}, "temperature", "valid number"),
    ],
)
def test_what_can_t_be_served_is_refused_by_name(fields: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        translated(**fields)
    assert message in caught.value.message
    assert caught.value.param == param
    assert param is None or param in caught.value.message


def test_tokens_are_counted_of_the_same_prompt() -> None:
    asked = {"model": "demo", "messages": HI, "system": "Be short.", "tools": [WEATHER]}
    counted = CountTokens().translate(asked, {})
    made = translated(system="Be short.", tools=[WEATHER])
    assert counted.kind == "tokenize"
    assert counted.body == {name: value for name, value in made.body.items() if name != "max_tokens"}
    assert counted.thinking == made.thinking
    assert "tools" not in CountTokens().translate({**asked, "tool_choice": {"type": "none"}}, {}).body
    with pytest.raises(RequestError, match="unknown field 'stop_sequences'"):
        CountTokens().translate({**asked, "stop_sequences": []}, {})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_anthropic_s_types(status: int, kind: str) -> None:
    frame = Messages().error(status, {"message": "why", "type": "x", "param": None, "code": "y", "request_id": "r"})
    assert frame.event == "error"
    assert frame.data == {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "r"}


def test_tool_runners_learn_that_they_must_send_all_messages() -> None:
    """By these details alone the official client's runner goes on without a thread, which it starts by default."""
    frame = Messages().error(400, {"message": "why", "type": "x", "param": "thread", "code": "y", "request_id": "r"})
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert frame.data["error"] == {"type": "invalid_request_error", "message": "why", "details": details}
