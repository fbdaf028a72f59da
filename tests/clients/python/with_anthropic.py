"""The official ``anthropic`` client."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import anthropic
import pydantic
from suite import (
    EMBEDDER,
    EMBEDDER_KEY,
    HELLO,
    KEY,
    MODEL,
    PICK,
    ROOT,
    SUM,
    WEATHER,
    WEATHER_TOOL,
    check_pick,
    refused,
    run,
)

client: Any = anthropic.Anthropic(base_url=ROOT, api_key=KEY)


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


COLD: Any = {"model": MODEL, "max_tokens": 400, "extra_body": {"temperature": 0}}
CHAT: Any = {**COLD, "messages": said(HELLO)}
PICKER: Any = {"name": "pick", "description": "Picks a number.", "input_schema": PICK, "strict": True}
FUNCTION: Any = WEATHER_TOOL["function"]
GET_WEATHER = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
ASK: Any = {**COLD, "messages": said(WEATHER), "tools": [GET_WEATHER]}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def streamed(**options: Any) -> Any:
    with client.messages.stream(**options) as stream:
        return stream.get_final_message()


def check_chat() -> None:
    message = client.messages.create(model=MODEL, max_tokens=400, messages=said(HELLO), system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert [block.type for block in message.content] == ["text"]
    assert message.usage.output_tokens > 3
    assert message.id == f"msg_{message._request_id}"
    (block,) = client.messages.create(**CHAT).content
    assert "llmk" in block.text.lower()


def check_stream_is_the_whole_answer() -> None:
    whole = client.messages.create(**CHAT)
    with client.messages.stream(**CHAT) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) > 5
    assert "".join(pieces) == message.content[0].text == whole.content[0].text
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens
    read = message.usage.cache_read_input_tokens
    assert read
    assert message.usage.input_tokens + read == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def check_events_are_in_order() -> None:
    events = list(client.messages.create(**{**COLD, "messages": said(SUM)}, thinking=THINKING, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert events[0].message.usage.input_tokens + events[0].message.usage.cache_read_input_tokens > 5
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event for event in events if event.type == "content_block_start"]
    stops = [event for event in events if event.type == "content_block_stop"]
    assert [event.content_block.type for event in starts] == ["thinking", "text"]
    assert [event.index for event in starts] == [event.index for event in stops] == [0, 1]
    deltas = [event for event in events if event.type == "content_block_delta"]
    assert [event.index for event in deltas if event.delta.type == "signature_delta"] == [0]


def check_async() -> None:
    async def main() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=ROOT, api_key=KEY) as several:
            many = await asyncio.gather(*(several.messages.create(**CHAT) for _ in range(8)))
            async with several.messages.stream(**CHAT) as stream:
                last: Any = await stream.get_final_message()
            texts: list[str] = [message.content[0].text for message in (*many, last)]
            return texts

    assert len(set(asyncio.run(main()))) == 1


def check_thinking_is_what_was_requested() -> None:
    options = {**COLD, "messages": said(SUM)}
    on = client.messages.create(thinking=THINKING, **options)
    thinking, text = on.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking
    assert thinking.signature
    assert "42" in text.text
    assert 0 < on.usage.output_tokens_details.thinking_tokens < on.usage.output_tokens
    for off in ({}, {"thinking": {"type": "disabled"}}):
        assert [block.type for block in client.messages.create(**options, **off).content] == ["text"]
    omitted = client.messages.create(thinking={"type": "adaptive", "display": "omitted"}, **options).content[0]
    assert (omitted.type, omitted.thinking, omitted.signature) == ("thinking", "", thinking.signature)
    more = [*said(SUM), {"role": "assistant", "content": on.content}, *said(HELLO)]
    assert client.messages.create(**{**COLD, "messages": more}, thinking=THINKING).stop_reason == "end_turn"


def check_tool_loop() -> None:
    for more in ({}, {"thinking": THINKING}):
        for message in (client.messages.create(**ASK, **more), streamed(**ASK, **more)):
            assert message.stop_reason == "tool_use"
            call = message.content[-1]
            assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
            found = [{"type": "text", "text": "sunny, 21 °C"}]
            result = {"type": "tool_result", "tool_use_id": call.id, "content": found}
            turn = [
                *said(WEATHER),
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result]},
            ]
            answer = client.messages.create(**{**ASK, "messages": turn}, **more)
            assert answer.stop_reason == "end_turn"
            assert "21" in answer.content[-1].text


def check_the_tool_runner() -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """
        Tells the current weather of a city.

        Args:
            city: The city
        """
        return f"sunny, 21 °C in {city}"

    for stream in (False, True):
        options = {**COLD, "messages": said(WEATHER), "tools": [get_weather], "max_iterations": 3}
        last = client.beta.messages.tool_runner(**options, stream=stream).until_done()
        assert last.stop_reason == "end_turn"
        assert "21" in last.content[-1].text


def check_a_thread_that_the_server_does_not_keep() -> None:
    """The client then sends all messages with each turn, if it may."""
    options: Any = {"model": MODEL, "max_tokens": 400}
    thread = client.beta.messages.thread(**options, unsupported_request_behavior="continue_unthreaded")
    for text in (SUM, HELLO):
        assert thread.send(said(text)[0], extra_body={"temperature": 0}).content[-1].text
    assert [message["role"] for message in thread.messages] == ["user", "assistant"] * 2
    kept = client.beta.messages.thread(**options)
    error: Any = refused(lambda: kept.send(said(SUM)[0]), anthropic.BadRequestError)
    assert "no conversation is stored" in error.message


def check_required_named_and_strict_tools() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "pick"}):
        once = {**choice, "disable_parallel_tool_use": True}
        for message in (
            client.messages.create(**CHAT, tools=[PICKER], tool_choice=once),
            streamed(**CHAT, tools=[PICKER], tool_choice=once),
        ):
            assert message.stop_reason == "tool_use"
            (call,) = (block for block in message.content if block.type == "tool_use")
            assert call.name == "pick"
            check_pick(call.input)
    quiet = client.messages.create(**ASK, tool_choice={"type": "none"})
    assert "tool_use" not in [block.type for block in quiet.content]


def check_structured_output() -> None:
    parsed = client.messages.parse(**CHAT, output_format=Pick)
    assert isinstance(parsed.parsed_output, Pick)
    with client.messages.stream(**CHAT, output_format=Pick) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Pick)
    form = {"format": {"type": "json_schema", "schema": PICK}}
    check_pick(client.messages.create(**CHAT, output_config=form).content[0].text)


def check_an_agent_on_its_defaults() -> None:
    """The shape of what coding agents send: the beta endpoint, a large system prompt with cache breakpoints, many
    tools, more tokens than the context has, and fields that only Anthropic's own servers use."""
    cache: Any = {"type": "ephemeral", "ttl": "1h"}
    tools = [GET_WEATHER, *({**GET_WEATHER, "name": f"tool_{number}", "description": "-"} for number in range(3))]
    tools[-1] = {**tools[-1], "cache_control": cache}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00af;"},
        {"type": "text", "text": "You are an agent.", "cache_control": cache},
    ]
    options: Any = {
        **COLD,
        "model": "claude-sonnet-4-5-20250929",
        "max_tokens": 32_000,
        "system": system,
        "tools": tools,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "user_0_account__session_1"},
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": WEATHER}]}]
    for _ in range(2):
        messages[-1]["content"][-1]["cache_control"] = cache
        with client.beta.messages.stream(messages=messages, **options) as stream:
            message = stream.get_final_message()
        assert message.model == MODEL
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 °C"} for call in calls]
        messages.append({"role": "user", "content": results})
    assert message.stop_reason in ("end_turn", "max_tokens", "model_context_window_exceeded")
    assert message.usage.cache_read_input_tokens


def check_tokens_are_counted() -> None:
    body: Any = {"messages": said(WEATHER), "system": "Be short.", "tools": [GET_WEATHER]}
    counted = client.messages.count_tokens(model=MODEL, **body).input_tokens
    usage = client.messages.create(**COLD, **body).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert client.beta.messages.count_tokens(model=MODEL, **body).input_tokens == counted


def check_stops() -> None:
    short = client.messages.create(**{**CHAT, "max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    text = client.messages.create(**CHAT).content[0].text
    word = text.split()[2]
    stopped = client.messages.create(**CHAT, stop_sequences=[word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    assert stopped.content[0].text == text[: text.index(word)]
    assert client.messages.create(**{**CHAT, "max_tokens": 10**6}, timeout=60).stop_reason == "end_turn"


def check_a_last_message_of_the_assistant_is_continued() -> None:
    text = client.messages.create(**CHAT).content[0].text
    start = text[: text.rindex(" ", 0, len(text) // 2)]
    messages = [*said(HELLO), {"role": "assistant", "content": start}]
    assert start + client.messages.create(**{**CHAT, "messages": messages}).content[0].text == text


def check_models() -> None:
    assert client.models.list().data[0].id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL


def check_a_key() -> None:
    if not EMBEDDER:
        return
    body: Any = {"model": "text-embedding-3-small", "max_tokens": 4, "messages": said(HELLO)}
    for own in ({"api_key": EMBEDDER_KEY}, {"auth_token": EMBEDDER_KEY}):
        able = anthropic.Anthropic(base_url=EMBEDDER, **own)
        error: Any = refused(lambda able=able: able.messages.create(**body), anthropic.BadRequestError)
        assert "no head that generates text" in error.message
    other = anthropic.Anthropic(base_url=EMBEDDER, api_key="wrong")
    error = refused(lambda: other.messages.create(**body), anthropic.AuthenticationError)
    assert error.body["error"]["type"] == "authentication_error"


def check_errors() -> None:
    missing: Any = refused(lambda: client.messages.create(**{**CHAT, "model": "gpt-5"}), anthropic.NotFoundError)
    assert "is not served here" in missing.message
    assert (missing.body["type"], missing.body["error"]["type"]) == ("error", "not_found_error")
    assert missing.body["request_id"] == missing.request_id
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    web = {"type": "web_search_20250305", "name": "web_search"}
    for why, bad in {
        "messages.0.content.0": {"messages": [{"role": "user", "content": [image]}]},
        "temperature": {"extra_body": {"temperature": -1}},
        "web_search": {"tools": [web]},
        "context": {"messages": said("a b c " * 20_000)},
    }.items():
        error: Any = refused(lambda bad=bad: client.messages.create(**{**CHAT, **bad}), anthropic.BadRequestError)
        assert why in error.message
        assert error.body["error"]["type"] == "invalid_request_error"
    late = refused(lambda: streamed(**{**CHAT, "messages": said("a b c " * 20_000)}), anthropic.BadRequestError)
    assert "context" in str(late)


if __name__ == "__main__":
    run(globals(), "anthropic")
