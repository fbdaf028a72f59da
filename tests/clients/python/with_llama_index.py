"""``llama-index``, by its integrations for OpenAI and for servers like it."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from suite import HELLO, KEY, MODEL, SUM, URL, WEATHER, refused, run

WHERE: Any = {"model": MODEL, "api_base": URL, "api_key": KEY, "is_chat_model": True, "context_window": 2048}
model = OpenAILike(**WHERE)
cold = OpenAILike(**WHERE, temperature=0.0, is_function_calling_model=True, max_tokens=300)
ASK = [ChatMessage(role="user", content=WEATHER)]


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def get_weather(city: str) -> str:
    """Tells the current weather of a city."""
    return f"21 degrees in {city}"


tool = FunctionTool.from_defaults(fn=get_weather)


def check_chat() -> None:
    said = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=HELLO)]
    answer = model.chat(said)
    assert answer.message.content
    assert model.chat([*said, answer.message, *ASK]).message is not None


def check_stream_is_the_whole_answer() -> None:
    said = [ChatMessage(role="user", content=HELLO)]
    last = list(cold.stream_chat(said))[-1]
    assert last.message.content == cold.chat(said).message.content


def check_completions() -> None:
    text = OpenAILike(**{**WHERE, "is_chat_model": False}, max_tokens=8, temperature=0.0)
    whole = text.complete("The capital of France is").text
    assert list(text.stream_complete("The capital of France is"))[-1].text == whole
    assert model.complete(HELLO).text


def check_tool_loop() -> None:
    answer = cold.chat_with_tools([tool], chat_history=ASK)
    (call,) = cold.get_tool_calls_from_response(answer)
    assert call.tool_kwargs == {"city": "Paris"}
    result = ChatMessage(role="tool", content="21 degrees", additional_kwargs={"tool_call_id": call.tool_id})
    again = cold.chat_with_tools([tool], chat_history=[*ASK, answer.message, result])
    assert again.message is not None
    assert cold.predict_and_call([tool], WEATHER).response
    streamed = list(cold.stream_chat_with_tools([tool], chat_history=ASK))[-1]
    assert [call.tool_kwargs for call in cold.get_tool_calls_from_response(streamed)] == [{"city": "Paris"}]


def check_required_tools() -> None:
    answer = cold.chat_with_tools([tool], user_msg=HELLO, tool_required=True, allow_parallel_tool_calls=False)
    assert len(cold.get_tool_calls_from_response(answer)) == 1


def check_structured_output() -> None:
    for able in (False, True):
        shaped = OpenAILike(**WHERE, max_tokens=300, is_function_calling_model=True, should_use_structured_outputs=able)
        made: Any = shaped.as_structured_llm(Pick).chat([ChatMessage(role="user", content=HELLO)])
        assert isinstance(made.raw, Pick)


def check_thinking() -> None:
    answer = OpenAILike(**WHERE, reasoning_effort="low", max_tokens=200).chat([ChatMessage(role="user", content=SUM)])
    assert model.chat([answer.message, ChatMessage(role="user", content="And 1 + 1?")]).message is not None


def check_errors() -> None:
    other = OpenAILike(**{**WHERE, "model": "gpt-4o"}, max_retries=0)
    refused(lambda: other.complete(HELLO), openai.NotFoundError)
    refused(lambda: model.complete("word " * 9000), openai.BadRequestError)


if __name__ == "__main__":
    run(globals(), "llama-index-llms-openai-like", "llama-index-llms-openai", "openai")
