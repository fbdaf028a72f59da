"""``langchain-openai``, by chat completions and by Responses."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any, Literal

import openai
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from suite import HELLO, KEY, MODEL, PICK, SUM, URL, WEATHER, check_pick, refused, run
from suite import check_usage as usage_adds_up

WHERE: Any = {"model": MODEL, "base_url": URL, "api_key": KEY}
APIS: Any = ({}, {"use_responses_api": True}, {"use_responses_api": True, "use_previous_response_id": True})
model = ChatOpenAI(**WHERE)


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


@tool
def get_weather(city: str) -> str:
    """Tells the current weather of a city."""
    return f"21 degrees in {city}"


@tool
def look() -> str:
    """Looks around."""
    return "nothing"


def added(chunks: Iterable[Any]) -> Any:
    """The message that chunks of a stream add up to."""
    return functools.reduce(operator.add, chunks)


def check_chat() -> None:
    for api in APIS:
        answer = ChatOpenAI(**WHERE, **api).invoke([SystemMessage("Be brief."), HumanMessage(HELLO, name="ann")])
        assert isinstance(answer, AIMessage)
        assert answer.text
        usage: Any = answer.usage_metadata
        usage_adds_up(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"])
    assert model.invoke(HELLO).response_metadata["finish_reason"] == "stop"


def check_stream_is_the_whole_answer() -> None:
    for api in APIS:
        cold = ChatOpenAI(**WHERE, temperature=0, **api)
        assert added(cold.stream(HELLO)).text == cold.invoke(HELLO).text
        counted = list(ChatOpenAI(**WHERE, stream_usage=True, **api).stream(HELLO))
        assert any(chunk.usage_metadata for chunk in counted)


def check_tool_loop() -> None:
    for api in APIS:
        able = ChatOpenAI(**WHERE, temperature=0, **api).bind_tools([get_weather, look])
        said: list[Any] = [HumanMessage(WEATHER)]
        for answer in (able.invoke(said), added(able.stream(said))):
            (call,) = answer.tool_calls
            assert call["args"] == {"city": "Paris"}
            result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"], name="get_weather")
            assert able.invoke([*said, answer, result]).text is not None


def check_required_named_and_strict_tools() -> None:
    for api in APIS:
        for choice in ("any", "required", "Pick"):
            able = ChatOpenAI(**WHERE, max_tokens=200, **api)
            able = able.bind_tools([Pick], tool_choice=choice, strict=True, parallel_tool_calls=False)
            (call,) = able.invoke(HELLO).tool_calls
            check_pick(call["args"])


def check_structured_output() -> None:
    for api in APIS:
        short = ChatOpenAI(**WHERE, max_tokens=200, **api)
        for method in ("json_schema", "function_calling"):
            made = short.with_structured_output(Pick, method=method).invoke(HELLO)
            assert isinstance(made, Pick), method
        check_pick(short.with_structured_output({"title": "pick", **PICK}).invoke(HELLO))
        assert isinstance(short.with_structured_output(Pick).invoke(HELLO), Pick)


def check_thinking() -> None:
    for api in APIS:
        able = ChatOpenAI(**WHERE, temperature=0, reasoning_effort="low", **api)
        answer = able.invoke(SUM)
        assert answer.text
        assert "<think>" not in answer.text
        assert able.invoke([HumanMessage(SUM), answer, HumanMessage("And 1 + 1?")]).text is not None


def check_embeddings() -> None:
    able = OpenAIEmbeddings(**WHERE, check_embedding_ctx_length=False)
    several, alone = able.embed_documents(["One text", "Another"]), able.embed_query("One text")
    assert max(abs(a - b) for a, b in zip(alone, several[0], strict=True)) < 2e-3
    assert len(OpenAIEmbeddings(**WHERE, check_embedding_ctx_length=False, dimensions=16).embed_query("One")) == 16


def check_logprobs() -> None:
    answer = model.bind(logprobs=True, top_logprobs=2, max_tokens=4).invoke(HELLO)
    assert answer.response_metadata["logprobs"]["content"]


def check_completions() -> None:
    text = OpenAI(**WHERE, max_tokens=8, temperature=0)
    assert "".join(text.stream("The capital of France is")) == text.invoke("The capital of France is")
    assert len(text.generate(["One", "Two"]).generations) == 2


def check_errors() -> None:
    for api in APIS:
        other = ChatOpenAI(**{**WHERE, "model": "gpt-4o"}, **api)
        refused(lambda other=other: other.invoke(HELLO), openai.NotFoundError)
        long = ChatOpenAI(**WHERE, **api)
        refused(lambda long=long: long.invoke("word " * 9000), openai.BadRequestError)


if __name__ == "__main__":
    run(globals(), "langchain-openai", "openai")
