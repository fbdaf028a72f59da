"""The Responses API and embeddings by the official ``openai`` client."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any, Literal

import openai
import pydantic
from openai.types.responses import Response
from suite import (
    EMBEDDER,
    EMBEDDER_KEY,
    HELLO,
    KEY,
    MODEL,
    PICK,
    QUIET,
    SUM,
    URL,
    WEATHER,
    WEATHER_TOOL,
    check_pick,
    refused,
    run,
)
from suite import check_usage as usage_adds_up

client = openai.OpenAI(base_url=URL, api_key=KEY)
CHAT: Any = {"model": MODEL, "input": HELLO}
COLD: Any = {**CHAT, "temperature": 0, "extra_body": QUIET}
SHORT: Any = {**CHAT, "max_output_tokens": 300, "extra_body": QUIET}
GET_WEATHER: Any = {"type": "function", **WEATHER_TOOL["function"], "strict": False}
ASK: Any = {**COLD, "input": WEATHER, "tools": [GET_WEATHER]}


class Pick(pydantic.BaseModel):
    """Picks a number."""

    model_config = pydantic.ConfigDict(extra="forbid")

    number: Literal[1, 2, 3]
    sure: bool


PICKER: Any = openai.pydantic_function_tool(Pick, name="pick")


def checked(response: Any) -> Response:
    """A response that matches the client's types, which the client itself does not check."""
    return Response.model_validate(response.model_dump(mode="json", warnings=False))


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def streamed(**options: Any) -> Any:
    with client.responses.stream(**options) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def check_chat() -> None:
    answer = checked(client.responses.create(**CHAT, instructions="Be brief."))
    assert answer.id.startswith("resp_")
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.output_text
    assert answer.usage
    usage_adds_up(answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens)
    counted = client.responses.input_tokens.count(**CHAT, instructions="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens
    chat = {"model": MODEL, "messages": [{"role": "user", "content": HELLO}], "temperature": 0, "extra_body": QUIET}
    same: Any = client.chat.completions.create(**chat)
    assert client.responses.create(**COLD).output_text == same.choices[0].message.content


def check_stream_is_the_whole_answer() -> None:
    whole = checked(client.responses.create(**COLD))
    events: Any = list(client.responses.create(**COLD, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert checked(events[-1].response).output_text == whole.output_text
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert added == [event.output_index for event in events if event.type == "response.output_item.done"]
    snapshot = ""
    with client.responses.stream(**COLD) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                snapshot = event.snapshot
        final = stream.get_final_response()
    assert snapshot == final.output_text == whole.output_text
    assert final.usage
    usage_adds_up(final.usage.input_tokens, final.usage.output_tokens, final.usage.total_tokens)


def check_async() -> None:
    async def main() -> set[str]:
        async with openai.AsyncOpenAI(base_url=URL, api_key=KEY) as several:
            whole = await several.responses.create(**COLD)
            async with several.responses.stream(**COLD) as stream:
                text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            return {whole.output_text, text}

    assert len(asyncio.run(main())) == 1


def check_tool_loop() -> None:
    for answer in (client.responses.create(**ASK), streamed(**ASK)):
        (call,) = calls_of(checked(answer))
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}
        stored = client.responses.create(**{**ASK, "input": [output]}, previous_response_id=answer.id)
        sent = [{"role": "user", "content": WEATHER}, *answer.output, output]
        plain = [{"role": "user", "content": WEATHER}, *(item.model_dump() for item in answer.output), output]
        for turn in (sent, plain):
            assert client.responses.create(**{**ASK, "input": turn}).output_text == stored.output_text
        assert "21" in stored.output_text


def check_required_named_and_strict_tools() -> None:
    for choice in ("required", {"type": "function", "name": "pick"}):
        options = {**SHORT, "tools": [PICKER], "tool_choice": choice, "parallel_tool_calls": False}
        for answer in (client.responses.parse(**options), streamed(**options)):
            (call,) = calls_of(answer)
            assert isinstance(call.parsed_arguments, Pick)


def check_structured_output() -> None:
    for answer in (client.responses.parse(**SHORT, text_format=Pick), streamed(**SHORT, text_format=Pick)):
        assert isinstance(answer.output_parsed, Pick)
    form: Any = {"format": {"type": "json_schema", "name": "pick", "schema": PICK, "strict": True}}
    check_pick(client.responses.create(**SHORT, text=form).output_text)


def check_thinking() -> None:
    sent: Any = [{"role": "user", "content": SUM}]
    sealed: Any = {"include": ["reasoning.encrypted_content"], "store": False}
    answer = checked(client.responses.create(model=MODEL, input=sent, temperature=0, **sealed))
    thought: Any = answer.output[0]
    assert thought.type == "reasoning"
    assert thought.content[0].text
    assert "<think>" not in answer.output_text
    more = [*sent, *answer.output, {"role": "user", "content": "And 1 + 1?"}]
    assert client.responses.create(model=MODEL, input=more, max_output_tokens=16).output is not None
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        wanted: Any = {"effort": effort}
        made = client.responses.create(**{**CHAT, "max_output_tokens": 16}, reasoning=wanted)
        assert ("reasoning" in [item.type for item in made.output]) == (effort != "none"), effort


def check_what_is_stored() -> None:
    first = client.responses.create(**COLD, metadata={"a": "b"})
    assert client.responses.retrieve(first.id).output_text == first.output_text
    assert [item.type for item in client.responses.input_items.list(first.id)] == ["message"]
    client.responses.delete(first.id)
    refused(lambda: client.responses.retrieve(first.id), openai.NotFoundError)
    talk = client.conversations.create(metadata={"topic": "demo"})
    client.responses.create(**COLD, conversation=talk.id)
    items: list[Any] = list(client.conversations.items.list(talk.id, order="asc"))
    assert [item.role for item in items] == ["user", "assistant"]
    assert client.conversations.delete(talk.id).deleted


def check_in_the_background() -> None:
    answer = client.responses.create(**COLD, background=True)
    while answer.status in ("queued", "in_progress"):
        time.sleep(0.05)
        answer = client.responses.retrieve(answer.id)
    assert checked(answer).status == "completed"
    endless = {**COLD, "extra_body": {**QUIET, "ignore_eos": True}}
    running = client.responses.create(**endless, background=True, max_output_tokens=1900)
    assert client.responses.cancel(running.id).status == "cancelled"


def check_logprobs() -> None:
    wanted: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 16}
    answer: Any = checked(client.responses.create(**COLD, **wanted))
    (part,) = answer.output[0].content
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert part.text.startswith("".join(entry.token for entry in part.logprobs)[:10])


def check_fields_that_have_no_effect() -> None:
    options: Any = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "store": False,
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "disabled",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "parallel_tool_calls": True,
        "max_output_tokens": 16,
    }
    assert client.responses.create(**CHAT, **options).output is not None


def check_embeddings() -> None:
    texts = ["Where is Paris?", "Bread is made of flour."]
    packed = client.embeddings.create(model=MODEL, input=texts)  # base64, which the client requests and decodes
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [entry.index for entry in packed.data] == [0, 1]
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 4
    for one, other in zip(packed.data, plain.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 2e-3
    (short,) = client.embeddings.create(model=MODEL, input=texts[0], dimensions=16).data
    assert len(short.embedding) == 16
    assert abs(math.hypot(*short.embedding) - 1) < 1e-4


def check_an_embedding_model_and_a_key() -> None:
    if not EMBEDDER:
        return
    able = openai.OpenAI(base_url=f"{EMBEDDER}/v1", api_key=EMBEDDER_KEY)
    (card,) = able.models.list().data
    assert len(able.embeddings.create(model=card.id, input="One text").data[0].embedding) == 64
    error: Any = refused(lambda: able.responses.create(model=card.id, input=HELLO), openai.BadRequestError)
    assert "no head that generates text" in error.message
    other = openai.OpenAI(base_url=f"{EMBEDDER}/v1", api_key="wrong")
    refused(lambda: other.embeddings.create(model=card.id, input="a"), openai.AuthenticationError)


def check_errors() -> None:
    missing: Any = refused(lambda: client.responses.create(**{**CHAT, "model": "gpt-4o"}), openai.NotFoundError)
    assert missing.code == "model_not_found"
    web: Any = {"tools": [{"type": "web_search"}]}
    for bad, param in (
        ({"temperature": -1}, "temperature"),
        (web, "tools[0].type"),
        ({"truncation": "auto"}, "truncation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"extra_body": {"topk": 1}}, "topk"),
    ):
        options = {**CHAT, **bad}
        error: Any = refused(lambda options=options: client.responses.create(**options), openai.APIStatusError)
        assert (error.status_code in (400, 404), error.param) == (True, param)
    long = {**CHAT, "input": "word " * 9000}
    for call in (lambda: client.responses.create(**long), lambda: streamed(**long)):
        error = refused(call, openai.BadRequestError)
        assert error.code == "context_length_exceeded"
    error = refused(lambda: client.embeddings.create(model=MODEL, input=""), openai.BadRequestError)
    assert error.param == "input"


if __name__ == "__main__":
    run(globals(), "openai")
