"""Three conversations of an agent of ``openai-agents`` with ten tool calls each, streamed, by the Responses API.

The argument says whether each request has the whole conversation (``responses``), or the server keeps it (``stored``).
Prints how each went, as JSON. Runs against any server, so that llmk can be compared with a reference.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from suite import KEY, MODEL, URL

set_tracing_disabled(True)
set_default_openai_client(openai.AsyncOpenAI(base_url=URL, api_key=KEY), use_for_tracing=False)


@function_tool
def get_weather(city: str) -> str:
    """Tells the current weather of a city."""
    return f"{len(city)} degrees"


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@function_tool
def note(text: str, tags: list[str]) -> str:
    """Keeps a note."""
    return json.dumps({"kept": text, "tags": tags})


async def converse(prompt: str) -> dict[str, Any]:
    """What an agent did and said for ``prompt``. Ids of calls are numbered, as servers draw them."""
    agent = Agent(name="helper", instructions="Use the tools.", model=MODEL, tools=[get_weather, add, note])
    run = Runner.run_streamed(agent, prompt, max_turns=20, auto_previous_response_id=sys.argv[1] == "stored")
    events: list[Any] = []
    ids: dict[str, int] = {}
    text = ""
    async for event in run.stream_events():
        if event.type == "raw_response_event":
            text += event.data.delta if event.data.type == "response.output_text.delta" else ""
            if event.data.type == "response.completed":
                events.append(["text", text])
                text = ""
        elif event.type == "run_item_stream_event":
            item: Any = event.item
            if event.name == "tool_called":
                number = ids.setdefault(item.raw_item.call_id, len(ids))
                events.append(["call", number, item.raw_item.name, json.loads(item.raw_item.arguments)])
            elif event.name == "tool_output":
                events.append(["result", ids[item.raw_item["call_id"]], item.output])
    results = sorted(event for event in events if event[0] == "result")
    others = [event for event in events if event[0] != "result"]
    return {"events": [*others, *results], "output": run.final_output, "requests": len(run.raw_responses)}


async def main() -> None:
    """Holds the conversations."""
    print("\n" + json.dumps([await converse(f"conversation {number}") for number in range(3)]))


if __name__ == "__main__":
    asyncio.run(main())
