"""``llama-index``, by its integrations for servers like OpenAI's: chat completions, Responses and embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from suite import HELLO, KEY, MODEL, SUM, URL, WEATHER, refused, run

WHERE: Any = {"model": MODEL, "api_base": URL, "api_key": KEY, "context_window": 2048}
CHAT: Any = {**WHERE, "is_chat_model": True}
model = OpenAILike(**CHAT)
COLD: Any = {"temperature": 0.0, "is_function_calling_model": True}
MODELS: Any = {
    "chat": OpenAILike(**CHAT, **COLD, max_tokens=300),
    "responses": OpenAILikeResponses(**WHERE, **COLD, max_output_tokens=300),
}
SAID = [ChatMessage(role="user", content=HELLO)]
ASK = [ChatMessage(role="user", content=WEATHER)]


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def get_weather(city: str) -> str:
    """Tells the current weather of a city."""
    return f"21 degrees in {city}"


tool = FunctionTool.from_defaults(fn=get_weather)


def each(check: Callable[[Any], object]) -> None:
    """Runs a check with every model."""
    for name, made in MODELS.items():
        try:
            check(made)
        except BaseException as error:
            error.add_note(f"with the model {name!r}")
            raise


def check_chat() -> None:
    said = [ChatMessage(role="system", content="Be brief."), *SAID]
    for made in (model, OpenAILikeResponses(**WHERE)):
        answer = made.chat(said)
        assert answer.message.content
        assert made.chat([*said, answer.message, *ASK]).message is not None


def check_stream_is_the_whole_answer() -> None:
    def check(cold: Any) -> None:
        assert list(cold.stream_chat(SAID))[-1].message.content == cold.chat(SAID).message.content

    each(check)


def check_completions() -> None:
    text = OpenAILike(**WHERE, is_chat_model=False, max_tokens=8, temperature=0.0)
    whole = text.complete("The capital of France is").text
    assert list(text.stream_complete("The capital of France is"))[-1].text == whole
    assert model.complete(HELLO).text


def check_tool_loop() -> None:
    def check(cold: Any) -> None:
        answer = cold.chat_with_tools([tool], chat_history=ASK)
        (call,) = cold.get_tool_calls_from_response(answer)
        assert call.tool_kwargs == {"city": "Paris"}
        ids = {"tool_call_id": call.tool_id, "call_id": call.tool_id}
        result = ChatMessage(role="tool", content="21 degrees", additional_kwargs=ids)
        again = cold.chat_with_tools([tool], chat_history=[*ASK, answer.message, result])
        assert again.message is not None
        assert cold.predict_and_call([tool], WEATHER).response
        streamed = list(cold.stream_chat_with_tools([tool], chat_history=ASK))[-1]
        assert [call.tool_kwargs for call in cold.get_tool_calls_from_response(streamed)] == [{"city": "Paris"}]

    each(check)


def check_an_agent() -> None:
    async def talk(cold: Any) -> Any:
        return await FunctionAgent(tools=[get_weather], llm=cold).run(WEATHER)

    def check(cold: Any) -> None:
        made = asyncio.run(talk(cold))
        assert [call.tool_kwargs for call in made.tool_calls] == [{"city": "Paris"}]

    each(check)


def check_required_tools() -> None:
    def check(cold: Any) -> None:
        answer = cold.chat_with_tools([tool], user_msg=HELLO, tool_required=True, allow_parallel_tool_calls=False)
        assert len(cold.get_tool_calls_from_response(answer)) == 1

    each(check)


def check_structured_output() -> None:
    def check(cold: Any) -> None:
        assert isinstance(cold.as_structured_llm(Pick).chat(SAID).raw, Pick)
        assert isinstance(cold.structured_predict(Pick, PromptTemplate(HELLO)), Pick)

    each(check)
    for made in (True, False):
        shaped = OpenAILike(**CHAT, **COLD, max_tokens=300, should_use_structured_outputs=made)
        assert isinstance(shaped.as_structured_llm(Pick).chat(SAID).raw, Pick)


def check_thinking() -> None:
    able = OpenAILike(**CHAT, reasoning_effort="low", max_tokens=200)
    other = OpenAILikeResponses(**WHERE, reasoning_options={"effort": "low"}, max_output_tokens=200)
    for made in (able, other):
        answer = made.chat([ChatMessage(role="user", content=SUM)])
        assert "<think>" not in (answer.message.content or "")
        more = [ChatMessage(role="user", content=SUM), answer.message, ChatMessage(role="user", content="And 1 + 1?")]
        assert made.chat(more).message is not None


def check_embeddings() -> None:
    able = OpenAILikeEmbedding(model_name=MODEL, api_base=URL, api_key=KEY)
    several, alone = able.get_text_embedding_batch(["One text", "Another"]), able.get_query_embedding("One text")
    assert max(abs(a - b) for a, b in zip(alone, several[0], strict=True)) < 2e-3
    short = OpenAILikeEmbedding(model_name=MODEL, api_base=URL, api_key=KEY, dimensions=16)
    assert len(short.get_text_embedding("One text")) == 16


def check_errors() -> None:
    where = {**WHERE, "model": "gpt-4o", "max_retries": 0}
    for other in (OpenAILike(**where, is_chat_model=True), OpenAILikeResponses(**where)):
        refused(lambda other=other: other.chat(SAID), openai.NotFoundError)
    long = [ChatMessage(role="user", content="word " * 9000)]
    each(lambda cold: refused(lambda: cold.chat(long), openai.BadRequestError))


if __name__ == "__main__":
    run(globals(), "llama-index-llms-openai-like", "llama-index-embeddings-openai-like", "openai")
