"""``pydantic-ai``."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pydantic
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from suite import HELLO, KEY, MODEL, SUM, URL, WEATHER, failure, refused, run

provider = OpenAIProvider(base_url=URL, api_key=KEY)
model = OpenAIChatModel(MODEL, provider=provider)


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def agent_of(**options: Any) -> Any:
    settings = {"temperature": 0, "max_tokens": 300, **options.pop("model_settings", {})}
    return Agent(model, model_settings=settings, **options)


def check_chat() -> None:
    answer = Agent(model, instructions="Be brief.").run_sync(HELLO)
    assert isinstance(answer.output, str)
    assert answer.usage.input_tokens > 0
    more = agent_of().run_sync("And who made you?", message_history=answer.all_messages())
    assert more.output


def check_stream_is_the_whole_answer() -> None:
    async def streamed() -> str:
        async with agent_of().run_stream(HELLO) as stream:
            return "".join([delta async for delta in stream.stream_text(delta=True)])

    assert asyncio.run(streamed()).strip() == agent_of().run_sync(HELLO).output.strip()


def check_tool_loop() -> None:
    seen: list[str] = []
    agent = agent_of(instructions="Use the tool.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tells the current weather of a city."""
        seen.append(city)
        return "21 degrees, clear"

    for prompt in (WEATHER, WEATHER):
        assert agent.run_sync(prompt).output
    assert seen, "the tool was not called"
    kept = agent.run_sync(WEATHER)
    assert agent.run_sync("Thanks!", message_history=kept.all_messages()).output


def check_outputs_of_every_kind() -> None:
    for kind in (Pick, ToolOutput(Pick), ToolOutput(Pick, strict=True), NativeOutput(Pick), NativeOutput([Pick])):
        made = agent_of(output_type=kind, model_settings={"temperature": 1.0}).run_sync(HELLO)
        assert isinstance(made.output, Pick), kind


def check_prompted_output_is_taken() -> None:
    """The schema stands in the prompt only, so that a small model may fail; but the requests must be accepted."""
    assert "status_code: 400" not in failure(lambda: agent_of(output_type=PromptedOutput(Pick)).run_sync(HELLO))


def check_streamed_output() -> None:
    async def streamed() -> Any:
        async with agent_of(output_type=Pick).run_stream(HELLO) as stream:
            return await stream.get_output()

    assert isinstance(asyncio.run(streamed()), Pick)


def check_settings() -> None:
    settings = {
        "parallel_tool_calls": False,
        "seed": 3,
        "top_p": 0.9,
        "openai_reasoning_effort": "low",
        "openai_user": "u",
        "openai_service_tier": "auto",
        "openai_logprobs": True,
        "openai_top_logprobs": 2,
        "stop_sequences": ["zzz"],
        "logit_bias": {"5": -1},
    }
    assert agent_of(model_settings=settings).run_sync(HELLO).output


def check_thinking() -> None:
    answer = agent_of().run_sync(SUM)
    thoughts = [part for message in answer.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    assert thoughts
    assert agent_of().run_sync("And 1 + 1?", message_history=answer.all_messages()).output


def check_errors() -> None:
    other = Agent(OpenAIChatModel("gpt-4o", provider=provider))
    error: Any = refused(lambda: other.run_sync(HELLO), ModelHTTPError)
    assert error.status_code == 404
    error = refused(lambda: agent_of().run_sync("word " * 9000), ModelHTTPError)
    assert error.status_code == 400


if __name__ == "__main__":
    run(globals(), "pydantic-ai-slim", "openai")
