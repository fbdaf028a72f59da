"""``pydantic-ai``, by its models for chat completions, for Responses and for Anthropic's API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Literal

import pydantic
from pydantic_ai import Agent, Embedder, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from suite import HELLO, KEY, MODEL, PICK, ROOT, SUM, URL, WEATHER, refused, run

provider = OpenAIProvider(base_url=URL, api_key=KEY)
anthropic = AnthropicProvider(base_url=ROOT, api_key=KEY)


def models_of(name: str) -> dict[str, Any]:
    return {
        "chat": OpenAIChatModel(name, provider=provider),
        "responses": OpenAIResponsesModel(name, provider=provider),
        "anthropic": AnthropicModel(name, provider=anthropic),
    }


MODELS = models_of(MODEL)


class Pick(pydantic.BaseModel):
    """Picks a number."""

    number: Literal[1, 2, 3]
    sure: bool


def agent_of(model: Any, **options: Any) -> Any:
    settings = {"temperature": 0, "max_tokens": 300, **options.pop("model_settings", {})}
    return Agent(model, model_settings=settings, **options)


def each(check: Callable[[Any], object]) -> None:
    """Runs a check with every model."""
    for name, model in MODELS.items():
        try:
            check(model)
        except BaseException as error:
            error.add_note(f"with the model {name!r}")
            raise


def check_chat() -> None:
    def check(model: Any) -> None:
        answer = Agent(model, instructions="Be brief.").run_sync(HELLO)
        assert isinstance(answer.output, str)
        assert answer.usage.input_tokens + answer.usage.cache_read_tokens > 0
        assert agent_of(model).run_sync("And who made you?", message_history=answer.all_messages()).output

    each(check)


def check_the_model_by_name() -> None:
    os.environ |= {"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": KEY}
    os.environ |= {"ANTHROPIC_BASE_URL": ROOT, "ANTHROPIC_API_KEY": KEY}
    for name in ("openai", "openai-chat", "openai-responses", "anthropic"):
        assert Agent(f"{name}:{MODEL}").run_sync(HELLO).output, name


def check_stream_is_the_whole_answer() -> None:
    async def streamed(model: Any) -> str:
        async with agent_of(model).run_stream(HELLO) as stream:
            return "".join([delta async for delta in stream.stream_text(delta=True)])

    def check(model: Any) -> None:
        assert asyncio.run(streamed(model)).strip() == agent_of(model).run_sync(HELLO).output.strip()

    each(check)


def check_tool_loop() -> None:
    def check(model: Any) -> None:
        seen: list[str] = []
        agent = agent_of(model)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """
            Tells the current weather of a city.

            Args:
                city: The city
            """
            seen.append(city)
            return "21 degrees, clear"

        kept = agent.run_sync(WEATHER)
        assert kept.output
        assert seen == ["Paris"]
        assert agent.run_sync("Thanks!", message_history=kept.all_messages()).output

    each(check)


def check_outputs_of_every_kind() -> None:
    def check(model: Any) -> None:
        kinds: list[Any] = [Pick, ToolOutput(Pick), ToolOutput(Pick, strict=True)]
        if not isinstance(model, AnthropicModel):  # which takes schemas for models that it knows by name only
            kinds += [NativeOutput(Pick), NativeOutput([Pick])]
        for kind in kinds:
            assert isinstance(agent_of(model, output_type=kind).run_sync(HELLO).output, Pick), kind

    each(check)


def check_prompted_output() -> None:
    """The schema stands in the prompt only; the request's own field enforces it."""
    form = {"type": "json_schema", "json_schema": {"name": "pick", "schema": PICK}}
    settings = {"extra_body": {"response_format": form}}
    agent = agent_of(MODELS["chat"], output_type=PromptedOutput(Pick), model_settings=settings)
    assert isinstance(agent.run_sync(HELLO).output, Pick)


def check_streamed_output() -> None:
    async def streamed(model: Any) -> Any:
        async with agent_of(model, output_type=Pick).run_stream(HELLO) as stream:
            return await stream.get_output()

    def check(model: Any) -> None:
        assert isinstance(asyncio.run(streamed(model)), Pick)

    each(check)


def check_settings() -> None:
    common = {"parallel_tool_calls": False, "top_p": 0.9, "stop_sequences": ["zzz"], "timeout": 60}
    openai = {"seed": 3, "logit_bias": {"5": -1}, "service_tier": "auto", "openai_user": "u", "thinking": "low"}
    probable = {"openai_logprobs": True, "openai_top_logprobs": 2, "openai_reasoning_effort": "low"}
    stored = {"openai_reasoning_summary": "auto", "openai_text_verbosity": "low", "openai_store": False}
    cached = {"anthropic_cache_instructions": True, "anthropic_metadata": {"user_id": "u"}, "extra_body": {"top_k": 5}}
    for name, settings in {
        "chat": {**common, **openai, **probable},
        "responses": {**common, **probable, **stored},
        "anthropic": {**common, **cached},
    }.items():
        assert agent_of(MODELS[name], instructions="Be brief.", model_settings=settings).run_sync(HELLO).output, name


def check_thinking() -> None:
    def check(model: Any) -> None:
        settings = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1500}
        wanted = settings if isinstance(model, AnthropicModel) else {}
        answer = agent_of(model, model_settings=wanted).run_sync(SUM)
        parts = [part for message in answer.all_messages() for part in message.parts]
        assert [part for part in parts if isinstance(part, ThinkingPart)]
        assert "<think>" not in answer.output
        assert agent_of(model).run_sync("And 1 + 1?", message_history=answer.all_messages()).output

    each(check)


def check_embeddings() -> None:
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=provider))
    found = embedder.embed_documents_sync(["One text", "Another"])
    assert len(found.embeddings) == 2
    (alone,) = embedder.embed_query_sync("One text").embeddings
    assert max(abs(a - b) for a, b in zip(alone, found.embeddings[0], strict=True)) < 2e-3
    short = embedder.embed_query_sync("One text", settings={"dimensions": 16})
    assert len(short.embeddings[0]) == 16


def check_errors() -> None:
    for name, model in models_of("gpt-4o").items():
        error: Any = refused(lambda model=model: Agent(model).run_sync(HELLO), ModelHTTPError)
        assert error.status_code == 404, name

    def check(model: Any) -> None:
        error: Any = refused(lambda: agent_of(model).run_sync("word " * 9000), ModelHTTPError)
        assert error.status_code == 400

    each(check)


if __name__ == "__main__":
    run(globals(), "pydantic-ai-slim", "openai", "anthropic")
