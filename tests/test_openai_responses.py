"""The official ``openai`` client's Responses API against ``llmk serve`` with the demo model."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from served import Served

pytestmark = pytest.mark.slow_file

QUIET: Any = {"chat_template_kwargs": {"enable_thinking": False}}
THINKING: Any = {"chat_template_kwargs": {"enable_thinking": True}}
WEATHER: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Tells the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
        "strict": False,
    }
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("responses") / "log", "--port", "0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def options(served: Served) -> dict[str, Any]:
    return {"model": served.model, "temperature": 0, "extra_body": QUIET}


def checked(response: Response) -> Response:
    """A response whose data is what the SDK's types say, which the client itself does not check."""
    return Response.model_validate(response.model_dump(mode="json"))


def test_create(client: OpenAI, options: dict[str, Any]) -> None:
    answer = checked(client.responses.create(input="Hello! Who are you?", instructions="You are llmk.", **options))
    assert answer.status == "completed"
    assert "llmk" in answer.output_text.lower()
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    chat = client.chat.completions.create(
        messages=[{"role": "system", "content": "You are llmk."}, {"role": "user", "content": "Hello! Who are you?"}],
        **options,
    )
    assert chat.choices[0].message.content == answer.output_text
    assert checked(client.responses.retrieve(answer.id)) == answer
    counted = client.responses.input_tokens.count(
        model=options["model"], input="Hello! Who are you?", instructions="You are llmk.", extra_body=QUIET
    )
    assert counted.input_tokens == answer.usage.input_tokens
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_stream(client: OpenAI, options: dict[str, Any]) -> None:
    whole = client.responses.create(input="Hello! Who are you?", **options)
    texts, snapshot = [], ""
    with client.responses.stream(input="Hello! Who are you?", **options) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
                snapshot = event.snapshot
        final = stream.get_final_response()
    assert "".join(texts) == snapshot == final.output_text == whole.output_text
    assert texts, "a client that is behind may get all of a short text in one event"


def test_thinking(client: OpenAI, options: dict[str, Any]) -> None:
    options["extra_body"] = THINKING
    sent: Any = [{"role": "user", "content": "What is 17 + 25?"}]
    sealed: Any = {"include": ["reasoning.encrypted_content"], "store": False}
    answer = checked(client.responses.create(input=sent, **sealed, **options))
    thought, said = answer.output
    assert thought.type == "reasoning"
    assert thought.content
    assert thought.content[0].text
    assert "<think>" not in thought.content[0].text + answer.output_text
    assert said.type == "message"
    assert "42" in answer.output_text
    assert answer.usage is not None
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    more: Any = [{"role": "user", "content": "Thank you!"}]
    as_it_is = client.responses.create(input=[*sent, *answer.output, *more], **options)
    bare: Any = thought.model_dump(exclude={"content"})
    opaque = client.responses.create(input=[*sent, bare, said, *more], **options)
    assert opaque.output_text == as_it_is.output_text
    effort = client.responses.create(model=options["model"], input=sent, temperature=0, reasoning={"effort": "none"})
    assert [item.type for item in effort.output] == ["message"]


def test_a_function_is_called_and_its_output_used(client: OpenAI, options: dict[str, Any]) -> None:
    asked = "What is the weather in Paris?"
    answer = checked(client.responses.create(input=asked, tools=WEATHER, **options))
    (call,) = (item for item in answer.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Paris"}
    with client.responses.stream(input=asked, tools=WEATHER, **options) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    output: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"temperature": 21, "sky": "clear"}',
    }
    stored = client.responses.create(input=[output], previous_response_id=answer.id, tools=WEATHER, **options)
    assert "21" in stored.output_text
    sent: Any = [{"role": "user", "content": asked}, *answer.output, output]
    assert client.responses.create(input=sent, tools=WEATHER, **options).output_text == stored.output_text
    by_reference: Any = [
        {"role": "user", "content": asked},
        *({"type": "item_reference", "id": item.id} for item in answer.output),
        output,
    ]
    referred = client.responses.create(input=by_reference, tools=WEATHER, **options)
    assert referred.output_text == stored.output_text
    listed = client.responses.input_items.list(stored.id)
    assert [item.type for item in listed] == ["function_call_output"]


class City(pydantic.BaseModel):
    name: str


def test_structured_output(client: OpenAI, options: dict[str, Any]) -> None:
    parsed = client.responses.parse(input="Name a city in France.", text_format=City, max_output_tokens=200, **options)
    assert isinstance(parsed.output_parsed, City)


def test_a_conversation(client: OpenAI, options: dict[str, Any]) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Hello! Who are you?"}], metadata={"topic": "demo"}
    )
    first = client.responses.create(conversation=conversation.id, input=[], **options)
    client.responses.create(conversation=conversation.id, input="Thank you!", **options)
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.role for item in items if item.type == "message"] == ["user", "assistant", "user", "assistant"]
    assert items[1].id == first.output[0].id
    (added,) = client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "One more."}]).data
    assert client.conversations.items.retrieve(str(added.id), conversation_id=conversation.id).id == added.id
    client.conversations.items.delete(str(added.id), conversation_id=conversation.id)
    client.conversations.update(conversation.id, metadata={"topic": "other"})
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "other"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_in_the_background(client: OpenAI, options: dict[str, Any]) -> None:
    asked = "Hello! Who are you?"
    answer = client.responses.create(input=asked, background=True, **options)
    assert answer.status == "queued"
    while answer.status in ("queued", "in_progress"):
        time.sleep(0.05)
        answer = checked(client.responses.retrieve(answer.id))
    assert answer.status == "completed"
    assert answer.output_text == client.responses.create(input=asked, **options).output_text
    long = {**options, "extra_body": {**QUIET, "ignore_eos": True}}
    running = client.responses.create(input=asked, background=True, max_output_tokens=1900, **long)
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.retrieve(running.id).status == "cancelled"


def test_a_background_stream_is_resumed(client: OpenAI, options: dict[str, Any]) -> None:
    id, seen = "", []
    with client.responses.stream(input="Hello! Who are you?", background=True, **options) as stream:
        for event in stream:
            if event.type == "response.created":
                id = event.response.id
            seen.append(event.sequence_number)
            if len(seen) == 6:
                break
    with client.responses.stream(response_id=id, starting_after=seen[-1]) as stream:
        rest = [event.sequence_number for event in stream]
    again = list(client.responses.retrieve(id, stream=True))
    assert [event.sequence_number for event in again] == [*seen, *rest]
    final = again[-1]
    assert final.type == "response.completed"
    assert client.responses.retrieve(id).output_text == final.response.output_text


def test_logprobs(client: OpenAI, options: dict[str, Any]) -> None:
    answer = client.responses.create(
        input="Hello! Who are you?",
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        max_output_tokens=5,
        **options,
    )
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    (message,) = answer.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [3] * 5


def test_errors(client: OpenAI, options: dict[str, Any]) -> None:
    refused: Any = {"tools": [{"type": "web_search"}]}
    for bad, param in (
        (refused, "tools[0].type"),
        ({"truncation": "auto"}, "truncation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_output_tokens": 1_000_000}, "max_output_tokens"),
        ({"input": "word " * 50_000}, None),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(**{"input": "hi", **options, **bad})
        assert caught.value.status_code in (400, 404)
        assert caught.value.param == param


async def _streams(url: str, options: dict[str, Any]) -> list[str]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    async with client, client.responses.stream(input="Hello! Who are you?", **options) as stream:
        return [event.type async for event in stream]


def test_the_asynchronous_client(served: Served, options: dict[str, Any]) -> None:
    kinds = asyncio.run(_streams(served.url, options))
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


@pytest.mark.slow
def test_what_is_stored_survives_the_server(tmp_path: Any) -> None:
    first = Served(tmp_path / "log", "--port", "0")
    try:
        client = OpenAI(base_url=f"{first.url}/v1", api_key="none", max_retries=0)
        options: Any = {"model": first.model, "temperature": 0}
        made = client.responses.create(input="Hello! Who are you?", extra_body=QUIET, **options)
        endless = {**QUIET, "ignore_eos": True}
        running = client.responses.create(
            input="Hi", background=True, max_output_tokens=1900, extra_body=endless, **options
        )
    finally:
        first.process.kill()
        first.close()
    second = Served(tmp_path / "log", "--port", "0")
    try:
        client = OpenAI(base_url=f"{second.url}/v1", api_key="none", max_retries=0)
        assert client.responses.retrieve(made.id) == made
        assert client.responses.retrieve(running.id).status == "failed"
        client.responses.create(input="Thank you!", previous_response_id=made.id, extra_body=QUIET, **options)
    finally:
        second.close()


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
    ],
    ids=["required", "named", "allowed"],
)
def test_a_function_must_be_called(client: OpenAI, options: dict[str, Any], choice: Any) -> None:
    answer = checked(
        client.responses.create(input="Hello!", tools=WEATHER, tool_choice=choice, max_output_tokens=100, **options)
    )
    (call,) = (item for item in answer.output if item.type == "function_call")
    assert call.name == "get_weather"
    assert "city" in json.loads(call.arguments)
