"""``litellm``, by its route for servers that speak OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import litellm
from suite import HELLO, KEY, MODEL, PICK, PICK_TOOL, SUM, URL, WEATHER, WEATHER_TOOL, check_pick, refused, run
from suite import check_usage as usage_adds_up

WHERE: Any = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY}
HOSTED: Any = {**WHERE, "model": f"hosted_vllm/{MODEL}"}
CHAT: Any = {"messages": [{"role": "user", "content": HELLO}]}
ASK: Any = {"messages": [{"role": "user", "content": WEATHER}], "tools": [WEATHER_TOOL]}


def check_chat() -> None:
    for where in (WHERE, HOSTED):
        answer: Any = litellm.completion(**where, **CHAT)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content
        usage_adds_up(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)


def check_stream_is_the_whole_answer() -> None:
    whole: Any = litellm.completion(**WHERE, **CHAT, temperature=0)
    chunks = list(litellm.completion(**WHERE, **CHAT, temperature=0, stream=True))
    built: Any = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == "stop"


def check_tool_loop() -> None:
    for stream in (False, True):
        answer: Any = litellm.completion(**WHERE, **ASK, temperature=0, stream=stream)
        message = (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "21 degrees"}
        for echoed in (message, message.model_dump()):
            again: Any = litellm.completion(**WHERE, **{**ASK, "messages": [*ASK["messages"], echoed, result]})
            assert again.choices[0].finish_reason in ("stop", "tool_calls")


def check_required_named_and_strict_tools() -> None:
    strict = {"type": "function", "function": {**PICK_TOOL["function"], "strict": True}}
    for choice in ("required", {"type": "function", "function": {"name": "pick"}}):
        answer: Any = litellm.completion(
            **WHERE, **CHAT, tools=[strict], tool_choice=choice, parallel_tool_calls=False, max_tokens=150
        )
        (call,) = answer.choices[0].message.tool_calls
        check_pick(call.function.arguments)


def check_structured_output() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "pick", "schema": PICK, "strict": True}}
    answer: Any = litellm.completion(**WHERE, **CHAT, response_format=form, max_tokens=300)
    check_pick(answer.choices[0].message.content)


def check_thinking_is_echoed() -> None:
    ask: Any = {"messages": [{"role": "user", "content": SUM}]}
    for where in (WHERE, HOSTED):
        for stream in (False, True):
            answer: Any = litellm.completion(**where, **ask, temperature=0, stream=stream)
            message = (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0].message
            assert message.reasoning_content
            more = [*ask["messages"], message.model_dump(), {"role": "user", "content": "And 1 + 1?"}]
            assert litellm.completion(**where, messages=more, max_tokens=4)
    assert litellm.completion(**HOSTED, **ask, reasoning_effort="low", max_tokens=4)


def check_logprobs() -> None:
    answer: Any = litellm.completion(**WHERE, **CHAT, logprobs=True, top_logprobs=2, max_tokens=4)
    assert answer.choices[0].logprobs


def check_errors() -> None:
    other = {**WHERE, "model": "openai/gpt-4o"}
    refused(lambda: litellm.completion(**other, **CHAT), litellm.NotFoundError)
    refused(lambda: litellm.completion(**WHERE, **CHAT, temperature=-1), litellm.BadRequestError)
    long = [{"role": "user", "content": "word " * 9000}]
    refused(lambda: litellm.completion(**WHERE, messages=long), litellm.ContextWindowExceededError)


if __name__ == "__main__":
    run(globals(), "litellm")
