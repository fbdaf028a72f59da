"""``openai-agents``, with chat completions."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pydantic
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    handoff,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from agents.exceptions import MaxTurnsExceeded
from openai.types.shared import Reasoning
from suite import HELLO, KEY, MODEL, SUM, URL, WEATHER, refused, run

set_tracing_disabled(True)
done = asyncio.new_event_loop().run_until_complete
client = openai.AsyncOpenAI(base_url=URL, api_key=KEY)
model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


@function_tool
def get_weather(city: str) -> str:
    """Tells the current weather of a city."""
    return f"21 degrees in {city}"


def agent(**options: Any) -> Agent[None]:
    settings = ModelSettings(temperature=0, max_tokens=300).resolve(options.pop("model_settings", None))
    return Agent(name="helper", model=model, model_settings=settings, **options)


def answered(agent: Agent[None], ask: Any, **options: Any) -> Any:
    return done(Runner.run(agent, ask, **options))


async def final(agent: Agent[None], ask: Any) -> Any:
    stream = Runner.run_streamed(agent, ask)
    kinds = [event.type async for event in stream.stream_events()]
    assert "raw_response_event" in kinds
    return stream.final_output


def check_chat() -> None:
    made = answered(Agent(name="helper", instructions="Be brief.", model=model), HELLO)
    assert made.final_output
    usage = made.context_wrapper.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0
    more = [*made.to_input_list(), {"role": "user", "content": "And who made you?"}]
    assert answered(agent(), more).final_output is not None


def check_the_model_by_name() -> None:
    set_default_openai_client(client, use_for_tracing=False)
    set_default_openai_api("chat_completions")
    assert answered(Agent(name="helper", model=MODEL), HELLO).final_output


def check_stream_is_the_whole_answer() -> None:
    assert done(final(agent(), HELLO)) == answered(agent(), HELLO).final_output


def check_tool_loop() -> None:
    made = answered(agent(tools=[get_weather]), WEATHER)
    kinds = [item.type for item in made.new_items]
    assert kinds.count("tool_call_item") == kinds.count("tool_call_output_item") >= 1
    more = [*made.to_input_list(), {"role": "user", "content": "Thanks!"}]
    assert answered(agent(tools=[get_weather]), more).final_output is not None
    assert done(final(agent(tools=[get_weather]), WEATHER)) is not None


def check_required_tools_and_handoffs() -> None:
    forced = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    made = answered(agent(tools=[get_weather], model_settings=forced), HELLO)
    assert "tool_call_item" in [item.type for item in made.new_items]
    other = Agent(name="other", model=model)
    first = agent(handoffs=[handoff(other)], model_settings=forced)
    assert answered(first, HELLO).last_agent is other


def check_structured_output() -> None:
    assert isinstance(answered(agent(output_type=Pick), HELLO).final_output, Pick)
    assert isinstance(done(final(agent(output_type=Pick), HELLO)), Pick)


def check_settings() -> None:
    settings = ModelSettings(
        reasoning=Reasoning(effort="low"),
        verbosity="low",
        store=False,
        metadata={"a": "b"},
        include_usage=True,
        top_logprobs=2,
        prompt_cache_retention="24h",
    )
    made = answered(agent(model_settings=settings), SUM)
    assert made.final_output
    more = [*made.to_input_list(), {"role": "user", "content": "And 1 + 1?"}]
    assert answered(agent(), more).final_output is not None


def check_errors() -> None:
    other = Agent(name="helper", model=OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client))
    refused(lambda: answered(other, HELLO), openai.NotFoundError)
    refused(lambda: answered(agent(), "word " * 9000), openai.BadRequestError)
    endless = ModelSettings(tool_choice="required")
    stubborn = agent(tools=[get_weather], model_settings=endless, reset_tool_choice=False)
    refused(lambda: answered(stubborn, HELLO, max_turns=2), MaxTurnsExceeded)


if __name__ == "__main__":
    run(globals(), "openai-agents", "openai")
