"""``openai-agents``, with Responses, its default, and with chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
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
set_default_openai_client(client, use_for_tracing=False)
MODELS: dict[str, Any] = {
    "by name": MODEL,
    "responses": OpenAIResponsesModel(model=MODEL, openai_client=client),
    "chat": OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
}


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


@function_tool
def get_weather(city: str) -> str:
    """Tells the current weather of a city."""
    return f"21 degrees in {city}"


def agent(model: Any, **options: Any) -> Agent[None]:
    settings = ModelSettings(temperature=0, max_tokens=300).resolve(options.pop("model_settings", None))
    return Agent(name="helper", model=model, model_settings=settings, **options)


def each(check: Callable[[Any], object]) -> None:
    """Runs a check with every model."""
    for name, model in MODELS.items():
        try:
            check(model)
        except BaseException as error:
            error.add_note(f"with the model {name!r}")
            raise


def answered(agent: Agent[None], said: Any, **options: Any) -> Any:
    return done(Runner.run(agent, said, **options))


async def final(agent: Agent[None], said: Any) -> Any:
    stream = Runner.run_streamed(agent, said)
    kinds = [event.type async for event in stream.stream_events()]
    assert "raw_response_event" in kinds
    return stream.final_output


def check_chat() -> None:
    def check(model: Any) -> None:
        made = answered(Agent(name="helper", instructions="Be brief.", model=model), HELLO)
        assert made.final_output
        usage = made.context_wrapper.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0
        more = [*made.to_input_list(), {"role": "user", "content": "And who made you?"}]
        assert answered(agent(model), more).final_output is not None

    each(check)


def check_chat_completions_as_the_default() -> None:
    set_default_openai_api("chat_completions")
    assert answered(Agent(name="helper", model=MODEL), HELLO).final_output
    set_default_openai_api("responses")


def check_stream_is_the_whole_answer() -> None:
    def check(model: Any) -> None:
        assert done(final(agent(model), HELLO)) == answered(agent(model), HELLO).final_output

    each(check)


def check_tool_loop() -> None:
    def check(model: Any) -> None:
        made = answered(agent(model, tools=[get_weather]), WEATHER)
        kinds = [item.type for item in made.new_items]
        assert kinds.count("tool_call_item") == kinds.count("tool_call_output_item") >= 1
        more = [*made.to_input_list(), {"role": "user", "content": "Thanks!"}]
        assert answered(agent(model, tools=[get_weather]), more).final_output is not None
        assert done(final(agent(model, tools=[get_weather]), WEATHER)) == made.final_output

    each(check)


def check_required_tools_and_handoffs() -> None:
    def check(model: Any) -> None:
        forced = ModelSettings(tool_choice="required", parallel_tool_calls=False)
        made = answered(agent(model, tools=[get_weather], model_settings=forced), HELLO)
        assert "tool_call_item" in [item.type for item in made.new_items]
        other = Agent(name="other", model=model)
        assert answered(agent(model, handoffs=[handoff(other)], model_settings=forced), HELLO).last_agent is other

    each(check)


def check_structured_output() -> None:
    def check(model: Any) -> None:
        assert isinstance(answered(agent(model, output_type=Pick), HELLO).final_output, Pick)
        assert isinstance(done(final(agent(model, output_type=Pick), HELLO)), Pick)

    each(check)


def check_settings() -> None:
    def check(model: Any) -> None:
        settings = ModelSettings(
            reasoning=Reasoning(effort="low"),
            verbosity="low",
            store=False,
            metadata={"a": "b"},
            include_usage=True,
            top_logprobs=2,
            prompt_cache_retention="24h",
        )
        made = answered(agent(model, model_settings=settings), SUM)
        assert made.final_output
        more = [*made.to_input_list(), {"role": "user", "content": "And 1 + 1?"}]
        assert answered(agent(model), more).final_output is not None

    each(check)


def check_what_the_server_keeps() -> None:
    model = MODELS["by name"]
    first = answered(agent(model), HELLO)
    assert answered(agent(model), "Thanks!", previous_response_id=first.last_response_id).final_output is not None
    chained = agent(model, tools=[get_weather])
    assert answered(chained, WEATHER, auto_previous_response_id=True).final_output is not None
    talk = done(client.conversations.create())
    assert answered(chained, WEATHER, conversation_id=talk.id).final_output is not None
    session = OpenAIConversationsSession(openai_client=client)
    for said in (WEATHER, "Thanks!"):
        assert answered(chained, said, session=session).final_output is not None
    assert len(done(session.get_items())) >= 4


def check_thinking() -> None:
    def check(model: Any) -> None:
        made = answered(agent(model), SUM)
        assert "<think>" not in made.final_output
        assert "reasoning_item" in [item.type for item in made.new_items]
        more = [*made.to_input_list(), {"role": "user", "content": "And 1 + 1?"}]
        assert answered(agent(model), more).final_output is not None

    each(check)


def check_errors() -> None:
    kinds: Any = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
    for other in ("gpt-4o", *(kind(model="gpt-4o", openai_client=client) for kind in kinds)):
        refused(lambda other=other: answered(Agent(name="helper", model=other), HELLO), openai.NotFoundError)

    def check(model: Any) -> None:
        refused(lambda: answered(agent(model), "word " * 9000), openai.BadRequestError)
        endless = ModelSettings(tool_choice="required")
        stubborn = agent(model, tools=[get_weather], model_settings=endless, reset_tool_choice=False)
        refused(lambda: answered(stubborn, HELLO, max_turns=2), MaxTurnsExceeded)

    each(check)


if __name__ == "__main__":
    run(globals(), "openai-agents", "openai")
