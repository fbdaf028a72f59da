"""Three conversations of an agent of ``pydantic-ai`` with ten tool calls each, streamed, by the API that the argument
names. Prints how each went, as JSON.

Runs against any server, so that llmk can be compared with a reference.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent, FunctionToolCallEvent, FunctionToolResultEvent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from suite import KEY, MODEL, ROOT, URL

provider = OpenAIProvider(base_url=URL, api_key=KEY)
MODELS: Any = {
    "chat": OpenAIChatModel(MODEL, provider=provider),
    "responses": OpenAIResponsesModel(MODEL, provider=provider),
    "anthropic": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=ROOT, api_key=KEY)),
}


def agent_of() -> Any:
    agent: Any = Agent(MODELS[sys.argv[1]], instructions="Use the tools.", model_settings={"temperature": 0})

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tells the current weather of a city."""
        return f"{len(city)} degrees"

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @agent.tool_plain
    def note(text: str, tags: list[str]) -> dict[str, Any]:
        """Keeps a note."""
        return {"kept": text, "tags": tags}

    return agent


async def converse(prompt: str) -> dict[str, Any]:
    """What an agent did and said for ``prompt``. Ids of calls are numbered, as servers draw them."""
    events: list[Any] = []
    ids: dict[str, int] = {}
    async with agent_of().iter(prompt) as run:
        async for node in run:
            if Agent.is_call_tools_node(node):
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        if isinstance(event, FunctionToolCallEvent):
                            number = ids.setdefault(event.part.tool_call_id, len(ids))
                            events.append(["call", number, event.part.tool_name, event.part.args_as_dict()])
                        elif isinstance(event, FunctionToolResultEvent):
                            part: Any = getattr(event, "part", None) or event.result
                            events.append(["result", ids[part.tool_call_id], part.content])
            elif Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    texts = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
                    events.append(["text", "".join(texts)])
    requests = run.usage.requests if not callable(run.usage) else run.usage().requests
    return {"events": sorted_results(events), "output": run.result.output, "requests": requests}


def sorted_results(events: list[Any]) -> list[Any]:
    """Events, with those of the results of parallel calls in the order of the calls."""
    found: list[Any] = []
    for event in events:
        at = len(found)
        while event[0] == "result" and at and found[at - 1][0] == "result" and found[at - 1][1] > event[1]:
            at -= 1
        found.insert(at, event)
    return found


async def main() -> None:
    """Holds the conversations."""
    print("\n" + json.dumps([await converse(f"conversation {number}") for number in range(3)]))


if __name__ == "__main__":
    asyncio.run(main())
