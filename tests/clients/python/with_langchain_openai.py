"""``langchain-openai``."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from suite import HELLO, KEY, MODEL, PICK, SUM, URL, WEATHER, check_pick, refused, run
from suite import check_usage as usage_adds_up

WHERE: Any = {"model": MODEL, "base_url": URL, "api_key": KEY}
model = ChatOpenAI(**WHERE)
cold = ChatOpenAI(**WHERE, temperature=0)
short = ChatOpenAI(**WHERE, max_tokens=200)


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


def check_chat() -> None:
    answer = model.invoke([SystemMessage("Be brief."), HumanMessage(HELLO, name="ann")])
    assert isinstance(answer, AIMessage)
    assert answer.response_metadata["finish_reason"] == "stop"
    usage: Any = answer.usage_metadata
    usage_adds_up(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"])


def check_stream_is_the_whole_answer() -> None:
    chunks = list(cold.stream(HELLO))
    whole: Any = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == cold.invoke(HELLO).content
    counted = list(ChatOpenAI(**WHERE, stream_usage=True).stream(HELLO))
    assert any(chunk.usage_metadata for chunk in counted)


def check_tool_loop() -> None:
    able = cold.bind_tools([get_weather, look])
    ask: list[Any] = [HumanMessage(WEATHER)]
    answer: Any = able.invoke(ask)
    (call,) = answer.tool_calls
    assert call["args"] == {"city": "Paris"}
    ask += [answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"], name="get_weather")]
    assert able.invoke(ask).response_metadata["finish_reason"] in ("stop", "tool_calls")
    streamed: Any = None
    for chunk in able.stream([HumanMessage(WEATHER)]):
        streamed = chunk if streamed is None else streamed + chunk
    assert [call["args"] for call in streamed.tool_calls] == [{"city": "Paris"}]


def check_required_named_and_strict_tools() -> None:
    for choice in ("any", "required", "Pick"):
        able = short.bind_tools([Pick], tool_choice=choice, strict=True, parallel_tool_calls=False)
        (call,) = able.invoke(HELLO).tool_calls
        check_pick(call["args"])


def check_structured_output() -> None:
    for method in ("json_schema", "function_calling"):
        made = short.with_structured_output(Pick, method=method).invoke(HELLO)
        assert isinstance(made, Pick), method
    check_pick(short.with_structured_output({"title": "pick", **PICK}).invoke(HELLO))
    assert isinstance(short.with_structured_output(Pick).invoke(HELLO), Pick)


def check_thinking() -> None:
    answer = ChatOpenAI(**WHERE, temperature=0, reasoning_effort="low").invoke(SUM)
    assert "<think>" not in answer.content


def check_logprobs() -> None:
    answer = model.bind(logprobs=True, top_logprobs=2, max_tokens=4).invoke(HELLO)
    assert answer.response_metadata["logprobs"]["content"]


def check_completions() -> None:
    text = OpenAI(**WHERE, max_tokens=8, temperature=0)
    assert "".join(text.stream("The capital of France is")) == text.invoke("The capital of France is")
    assert len(text.generate(["One", "Two"]).generations) == 2


def check_errors() -> None:
    other = ChatOpenAI(**{**WHERE, "model": "gpt-4o"})
    refused(lambda: other.invoke(HELLO), openai.NotFoundError)
    refused(lambda: model.invoke("word " * 9000), openai.BadRequestError)


if __name__ == "__main__":
    run(globals(), "langchain-openai", "openai")
