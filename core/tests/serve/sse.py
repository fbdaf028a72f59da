"""Reading server-sent events."""

from __future__ import annotations

import json
from typing import Any


def events(text: str) -> list[Any]:
    """The JSON of every event; the stream must end with ``[DONE]``."""
    *data, end = text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    return [json.loads(item.removeprefix("data: ")) for item in data]


def fold(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """What a client makes of the chunks of a chat completion, by choice."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        folded = choices.setdefault(
            choice["index"], {"message": {}, "calls": {}, "finish_reason": None, "logprobs": []}
        )
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            if name in delta:
                folded["message"][name] = folded["message"].get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            known = folded["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
            for name in known:
                known[name] += call["function"].get(name, "")
        folded["finish_reason"] = choice["finish_reason"] or folded["finish_reason"]
        folded["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
    return choices
