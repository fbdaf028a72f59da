"""The official ``openai`` client."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pydantic
from suite import HELLO, KEY, MODEL, PICK, PICK_TOOL, QUIET, SUM, URL, WEATHER, WEATHER_TOOL, check_pick, refused, run
from suite import check_usage as usage_adds_up

client = openai.OpenAI(base_url=URL, api_key=KEY)
CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": HELLO}]}
ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": WEATHER}], "tools": [WEATHER_TOOL]}


class Pick(pydantic.BaseModel):
    """Picks a number."""

    model_config = pydantic.ConfigDict(extra="forbid")

    number: Literal[1, 2, 3]
    sure: bool


def check_chat() -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage
    usage_adds_up(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
    assert client.models.list().data[0].id == MODEL


def check_stream_is_the_whole_answer() -> None:
    whole = client.chat.completions.create(**CHAT, temperature=0).choices[0].message
    chunks = list(client.chat.completions.create(**CHAT, temperature=0, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    with client.chat.completions.stream(**CHAT, temperature=0, stream_options={"include_usage": True}) as events:
        kinds = {event.type for event in events}
        final = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole.content
    assert final.usage
    usage_adds_up(final.usage.prompt_tokens, final.usage.completion_tokens, final.usage.total_tokens)


def check_async() -> None:
    async def main() -> tuple[Any, str]:
        async with openai.AsyncOpenAI(base_url=URL, api_key=KEY) as several:
            answer = await several.chat.completions.create(**CHAT, temperature=0)
            stream = await several.chat.completions.create(**CHAT, temperature=0, stream=True)
            return answer, "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    answer, text = asyncio.run(main())
    assert answer.choices[0].message.content == text


def check_tool_loop() -> None:
    choice = client.chat.completions.create(**ASK, temperature=0).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    for echoed in (choice.message, choice.message.model_dump(), choice.message.model_dump(exclude_none=True)):
        again = client.chat.completions.create(**{**ASK, "messages": [*ASK["messages"], echoed, result]})
        assert again.choices[0].finish_reason in ("stop", "tool_calls")


def check_streamed_tools() -> None:
    with client.chat.completions.stream(**ASK, temperature=0) as events:
        seen = [event for event in events if event.type.startswith("tool_calls")]
        final = events.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Paris"}
    assert seen[-1].type == "tool_calls.function.arguments.done"


def check_required_named_and_strict_tools() -> None:
    strict: Any = openai.pydantic_function_tool(Pick, name="pick")
    named = {"type": "function", "function": {"name": "pick"}}
    for choice in ("required", named):
        options: Any = {**CHAT, "tools": [strict], "tool_choice": choice, "parallel_tool_calls": False}
        answer = client.chat.completions.parse(**options, max_completion_tokens=150)
        (call,) = answer.choices[0].message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, Pick)
        echoed = [
            *CHAT["messages"],
            answer.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "3"},
        ]
        client.chat.completions.create(model=MODEL, messages=echoed, tools=[strict], max_tokens=8)


def check_a_tool_without_parameters() -> None:
    tools: Any = [{"type": "function", "function": {"name": "look"}}]
    answer = client.chat.completions.create(**CHAT, tools=tools, tool_choice="required", max_tokens=150)
    calls: Any = answer.choices[0].message.tool_calls
    assert calls[0].function.name == "look"
    assert isinstance(json.loads(calls[0].function.arguments), dict)


def check_structured_output() -> None:
    answer = client.chat.completions.parse(**CHAT, response_format=Pick, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Pick)
    with client.chat.completions.stream(**CHAT, response_format=Pick, max_tokens=300) as events:
        assert isinstance(events.get_final_completion().choices[0].message.parsed, Pick)
    form: Any = {"type": "json_schema", "json_schema": {"name": "pick", "schema": PICK}}
    check_pick(client.chat.completions.create(**CHAT, response_format=form).choices[0].message.content)


def check_thinking() -> None:
    thought: Any = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": SUM}], temperature=0
    )
    message = thought.choices[0].message
    assert message.reasoning_content
    assert "<think>" not in message.content
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        options: Any = {**CHAT, "reasoning_effort": effort, "max_tokens": 4}
        made: Any = client.chat.completions.create(**options).choices[0].message
        assert bool(getattr(made, "reasoning_content", None)) == (effort != "none"), effort


def check_logprobs() -> None:
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, max_tokens=4, extra_body=QUIET)
    assert answer.choices[0].logprobs
    entries = answer.choices[0].logprobs.content or []
    assert len(entries) == 4
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)


def check_fields_that_have_no_effect() -> None:
    options: Any = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "store": False,
        "verbosity": "low",
        "prediction": {"type": "content", "content": "Hello"},
        "parallel_tool_calls": True,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "modalities": ["text"],
        "n": 2,
        "seed": 1,
        "max_completion_tokens": 3,
        "logit_bias": {"5": -1},
        "extra_body": {"top_k": 5, "min_p": 0.1},
        "extra_headers": {"x-test": "1"},
    }
    assert len(client.chat.completions.create(**CHAT, **options).choices) == 2


def check_messages_of_every_kind() -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}], "name": "ann"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Hello"}],
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [],
            "reasoning": None,
            "reasoning_content": "hm",
            "reasoning_details": [],
            "provider_specific_fields": {},
            "id": "msg_1",
        },
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
    ]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3).choices


def check_completions() -> None:
    whole = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, logprobs=1)
    assert whole.choices[0].logprobs
    assert whole.usage
    usage_adds_up(whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens)
    stream = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def check_errors() -> None:
    other: Any = {**CHAT, "model": "gpt-4o"}
    missing: Any = refused(lambda: client.chat.completions.create(**other), openai.NotFoundError)
    assert missing.code == "model_not_found"
    bad: Any = {"temperature": -1}
    error: Any = refused(lambda: client.chat.completions.create(**CHAT, **bad), openai.BadRequestError)
    assert error.param == "temperature"
    unknown: Any = {"extra_body": {"topk": 1}}
    error = refused(lambda: client.chat.completions.create(**CHAT, **unknown), openai.BadRequestError)
    assert "top_k" in error.message
    long: Any = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 9000}]}
    error = refused(lambda: client.chat.completions.create(**long), openai.BadRequestError)
    assert error.code == "context_length_exceeded"
    tool: Any = {"tools": [PICK_TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}
    error = refused(lambda: client.chat.completions.create(**CHAT, **tool), openai.BadRequestError)
    assert error.param == "tool_choice"


if __name__ == "__main__":
    run(globals(), "openai")
