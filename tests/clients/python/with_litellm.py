"""``litellm``, by its routes for servers that speak OpenAI's, Anthropic's and Ollama's APIs."""

from __future__ import annotations

import json
from typing import Any

import litellm
from suite import HELLO, KEY, MODEL, PICK, PICK_TOOL, ROOT, SUM, URL, WEATHER, WEATHER_TOOL, check_pick, refused, run
from suite import check_usage as usage_adds_up

WHERE: Any = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY}
HOSTED: Any = {**WHERE, "model": f"hosted_vllm/{MODEL}"}
CLAUDE: Any = {"model": f"anthropic/{MODEL}", "api_base": ROOT, "api_key": KEY}
OLLAMA: Any = {"model": f"ollama_chat/{MODEL}", "api_base": ROOT}
CHAT: Any = {"messages": [{"role": "user", "content": HELLO}]}
ASK: Any = {"messages": [{"role": "user", "content": WEATHER}], "tools": [WEATHER_TOOL]}


def check_chat() -> None:
    for where in (WHERE, HOSTED, CLAUDE, OLLAMA):
        answer: Any = litellm.completion(**where, **CHAT)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content
        usage_adds_up(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)


def check_stream_is_the_whole_answer() -> None:
    for where in (WHERE, HOSTED, CLAUDE, OLLAMA):
        whole: Any = litellm.completion(**where, **CHAT, temperature=0)
        chunks = list(litellm.completion(**where, **CHAT, temperature=0, stream=True))
        built: Any = litellm.stream_chunk_builder(chunks)
        assert built.choices[0].message.content == whole.choices[0].message.content
        assert built.choices[0].finish_reason == "stop"


def check_tool_loop() -> None:
    for where in (WHERE, HOSTED, CLAUDE, OLLAMA):
        for stream in (False, True):
            answer: Any = litellm.completion(**where, **ASK, temperature=0, stream=stream)
            message = (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0].message
            (call,) = message.tool_calls
            assert json.loads(call.function.arguments) == {"city": "Paris"}, where
            result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "21 degrees"}
            for echoed in (message, message.model_dump()):
                again: Any = litellm.completion(**where, **{**ASK, "messages": [*ASK["messages"], echoed, result]})
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
    for where in (WHERE, HOSTED, CLAUDE, OLLAMA):
        answer: Any = litellm.completion(**where, **CHAT, response_format=form, max_tokens=300)
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


def check_responses() -> None:
    options: Any = {"model": WHERE["model"], "api_base": URL, "api_key": KEY, "temperature": 0}
    whole: Any = litellm.responses(input=HELLO, **options)
    events: Any = list(litellm.responses(input=HELLO, stream=True, **options))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    texts = [part.text for item in whole.output if item.type == "message" for part in item.content]
    assert "".join(deltas) == "".join(texts)
    tool = {"type": "function", **WEATHER_TOOL["function"]}
    called: Any = litellm.responses(input=WEATHER, tools=[tool], **options)
    (call,) = (item for item in called.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    last: Any = litellm.responses(input=[output], previous_response_id=called.id, tools=[tool], **options)
    assert last.status == "completed"


def check_embeddings() -> None:
    for where in (WHERE, HOSTED, {**OLLAMA, "model": f"ollama/{MODEL}"}):
        several: Any = litellm.embedding(**where, input=["One text", "Another"])
        alone: Any = litellm.embedding(**where, input="One text")
        assert len(several.data) == 2
        one, other = alone.data[0]["embedding"], several.data[0]["embedding"]
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 2e-3
    short: Any = litellm.embedding(**HOSTED, input="One text", dimensions=16)
    assert len(short.data[0]["embedding"]) == 16


def check_rerank() -> None:
    ranked: Any = litellm.rerank(
        model=f"hosted_vllm/{MODEL}", api_base=URL, api_key=KEY, query="One", documents=["One text", "Another"], top_n=1
    )
    assert len(ranked.results) == 1


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
