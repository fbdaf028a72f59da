"""The official ``anthropic`` client against ``llmk serve`` with the demo model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from served import Served

pytestmark = pytest.mark.slow

HELLO: Any = [{"role": "user", "content": "Hello! Who are you?"}]
SUM: Any = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Tells the current weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
    },
}
PARIS: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("anthropic") / "log", "--port", "0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Anthropic:
    return Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def options(served: Served) -> dict[str, Any]:
    return {"model": served.model, "max_tokens": 400, "extra_body": {"temperature": 0}}


@pytest.mark.hook("llmk_routes")
def test_a_message(client: Any, options: dict[str, Any]) -> None:
    message = client.messages.create(messages=HELLO, **options)
    (block,) = message.content
    assert block.type == "text"
    assert "llmk" in block.text.lower()
    assert (message.type, message.role, message.model) == ("message", "assistant", options["model"])
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens > 3
    assert message._request_id
    assert message.id == f"msg_{message._request_id}"


def test_streaming_says_the_same(client: Any, options: dict[str, Any]) -> None:
    whole = client.messages.create(messages=HELLO, **options)
    with client.messages.stream(messages=HELLO, **options) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) > 5
    assert "".join(pieces) == message.content[0].text == whole.content[0].text
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens
    read = message.usage.cache_read_input_tokens
    assert read
    assert message.usage.input_tokens + read == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_events_are_in_order(client: Any, options: dict[str, Any]) -> None:
    stream = client.messages.create(messages=SUM, thinking=THINKING, stream=True, **options)
    events: list[Any] = list(stream)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert events[0].message.usage.input_tokens + events[0].message.usage.cache_read_input_tokens > 5
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event for event in events if event.type == "content_block_start"]
    stops = [event for event in events if event.type == "content_block_stop"]
    assert [event.content_block.type for event in starts] == ["thinking", "text"]
    assert [event.index for event in starts] == [event.index for event in stops] == [0, 1]
    deltas = [event for event in events if event.type == "content_block_delta"]
    signatures = [event for event in deltas if event.delta.type == "signature_delta"]
    assert [event.index for event in signatures] == [0]


def test_thinking_is_what_was_requested(client: Any, options: dict[str, Any]) -> None:
    on = client.messages.create(messages=SUM, thinking=THINKING, **options)
    thinking, text = on.content
    assert thinking.type == "thinking"
    assert thinking.thinking
    assert thinking.signature
    assert text.type == "text"
    assert "42" in text.text
    details = on.usage.output_tokens_details
    assert details is not None
    assert 0 < details.thinking_tokens < on.usage.output_tokens
    for off in ({}, {"thinking": {"type": "disabled"}}):
        kinds = [block.type for block in client.messages.create(messages=SUM, **options, **off).content]
        assert kinds == ["text"]
    hidden: Any = {"type": "adaptive", "display": "omitted"}
    omitted = client.messages.create(messages=SUM, thinking=hidden, **options).content[0]
    assert omitted.type == "thinking"
    assert (omitted.thinking, omitted.signature) == ("", thinking.signature)
    more = [*SUM, {"role": "assistant", "content": on.content}, *HELLO]
    assert client.messages.create(messages=more, thinking=THINKING, **options).stop_reason == "end_turn"


@pytest.mark.parametrize("thinking", [None, THINKING])
def test_a_tool_is_called_and_its_result_used(client: Any, options: dict[str, Any], thinking: Any) -> None:
    options = {**options, "tools": [WEATHER], **({"thinking": thinking} if thinking else {})}
    whole = client.messages.create(messages=PARIS, **options)
    with client.messages.stream(messages=PARIS, **options) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        call = message.content[-1]
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny, 21 °C"}]}
        turn: Any = [*PARIS, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        answer = client.messages.create(messages=turn, **options)
        assert answer.stop_reason == "end_turn"
        assert "21" in answer.content[-1].text


def test_no_tool_is_called_where_none_may_be(client: Any, options: dict[str, Any]) -> None:
    message = client.messages.create(messages=PARIS, tools=[WEATHER], tool_choice={"type": "none"}, **options)
    assert "tool_use" not in [block.type for block in message.content]


def test_an_agent_on_its_defaults(client: Any, options: dict[str, Any]) -> None:
    """The shape of what coding agents send: the beta endpoint, a large system prompt with cache breakpoints, many
    tools, more tokens than the context has, and fields that only Anthropic's own servers use."""
    cache: Any = {"type": "ephemeral", "ttl": "1h"}
    tools = [WEATHER, *({**WEATHER, "name": f"tool_{number}", "description": "-"} for number in range(3))]
    tools[-1] = {**tools[-1], "cache_control": cache}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00af;"},
        {"type": "text", "text": "You are an agent.", "cache_control": cache},
    ]
    asked: Any = {
        **options,
        "model": "claude-sonnet-4-5-20250929",
        "max_tokens": 32_000,
        "system": system,
        "tools": tools,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "user_0_account__session_1"},
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": PARIS[0]["content"]}]}]
    for _ in range(2):
        messages[-1]["content"][-1]["cache_control"] = cache
        with client.beta.messages.stream(messages=messages, **asked) as stream:
            message = stream.get_final_message()
        assert message.model == options["model"]
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 °C"} for call in calls]
        messages.append({"role": "user", "content": results})
    assert message.stop_reason in ("end_turn", "max_tokens", "model_context_window_exceeded")
    assert message.usage.cache_read_input_tokens


def test_tokens_are_counted(client: Any, options: dict[str, Any]) -> None:
    asked: Any = {"messages": PARIS, "system": "Be short.", "tools": [WEATHER]}
    counted = client.messages.count_tokens(model=options["model"], **asked).input_tokens
    usage = client.messages.create(**options, **asked).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert client.beta.messages.count_tokens(model=options["model"], **asked).input_tokens == counted


def test_stops(client: Any, options: dict[str, Any]) -> None:
    short = client.messages.create(messages=HELLO, **{**options, "max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    text = client.messages.create(messages=HELLO, **options).content[0].text
    word = text.split()[2]
    stopped = client.messages.create(messages=HELLO, stop_sequences=[word], **options)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    assert stopped.content[0].text == text[: text.index(word)]
    full = client.messages.create(messages=HELLO, **{**options, "max_tokens": 10**6})
    assert full.stop_reason == "end_turn"


def test_a_last_message_of_the_assistant_is_continued(client: Any, options: dict[str, Any]) -> None:
    text = client.messages.create(messages=HELLO, **options).content[0].text
    start = text[: text.rindex(" ", 0, len(text) // 2)]
    messages = [*HELLO, {"role": "assistant", "content": start}]
    rest = client.messages.create(messages=messages, **options).content[0].text
    assert start + rest == text


def test_errors_are_the_client_s_own(client: Any, served: Served, options: dict[str, Any]) -> None:
    with pytest.raises(anthropic.NotFoundError, match="is not served here") as caught:
        client.messages.create(messages=HELLO, **{**options, "model": "gpt-5"})
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert body["request_id"] == caught.value.request_id
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0: .*needs a vision model"):
        client.messages.create(messages=[{"role": "user", "content": [image]}], **options)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(messages=HELLO, **{**options, "extra_body": {"temperature": -1}})
    with pytest.raises(anthropic.BadRequestError, match="web_search"):
        client.messages.create(messages=HELLO, tools=[{"type": "web_search_20250305", "name": "web_search"}], **options)
    long: Any = [{"role": "user", "content": "a b c " * 20_000}]
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(messages=long, **options)
    status, answer = served.post("/v1/messages", [])
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def test_many_at_once(served: Served, options: dict[str, Any]) -> None:
    async def ask() -> list[str]:
        async with AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0, timeout=60) as client:
            many = [client.messages.create(messages=HELLO, **options) for _ in range(8)]
            return [message.content[0].text for message in await asyncio.gather(*many)]

    assert len(set(asyncio.run(ask()))) == 1


def test_a_key_is_that_of_the_client(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Served(tmp_path_factory.mktemp("key") / "log", "--port", "0", env={"LLMK__SERVER__API_KEYS": '["sesame"]'})
    asked: Any = {"model": server.model, "max_tokens": 4, "messages": HELLO}
    try:
        Anthropic(base_url=server.url, api_key="sesame", max_retries=0).messages.create(**asked)
        Anthropic(base_url=server.url, auth_token="sesame", max_retries=0).messages.create(**asked)
        with pytest.raises(anthropic.AuthenticationError) as caught:
            Anthropic(base_url=server.url, api_key="wrong", max_retries=0).messages.create(**asked)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"
    finally:
        server.close()


class City(pydantic.BaseModel):
    city: str
    warm: bool


def test_structured_outputs(client: Any, options: dict[str, Any]) -> None:
    asked: Any = [{"role": "user", "content": "Is it warm in Paris?"}]
    message = client.messages.parse(messages=asked, output_format=City, **options)
    assert isinstance(message.parsed_output, City)
    assert set(json.loads(message.content[0].text)) == {"city", "warm"}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_must_be_called(client: Any, options: dict[str, Any], choice: Any) -> None:
    message = client.messages.create(messages=HELLO, tools=[WEATHER], tool_choice=choice, **options)
    assert message.stop_reason == "tool_use"
    assert [block.name for block in message.content if block.type == "tool_use"] == ["get_weather"]
