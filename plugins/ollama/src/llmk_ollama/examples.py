"""Requests for the conformance kit."""

from __future__ import annotations

from typing import Any

_MODEL = {"model": "model"}
_PROMPT: dict[str, Any] = {**_MODEL, "prompt": "Hi"}
_HI = {"role": "user", "content": "Hi"}
_CALL = {"function": {"name": "f", "arguments": {"x": 1}}}
_TURN = [_HI, {"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "tool_name": "f", "content": "1"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

CHAT: list[dict[str, Any]] = [_MODEL, {**_MODEL, "messages": _TURN, "tools": [_TOOL], "think": True, "stream": False}]
GENERATE: list[dict[str, Any]] = [
    _MODEL,
    {**_MODEL, "prompt": "Hi", "format": "json"},
    {**_MODEL, "prompt": "Hi", "raw": True},
]
EMBED: list[dict[str, Any]] = [_MODEL, {**_MODEL, "input": "a"}, {**_MODEL, "input": ["a", "b"], "dimensions": 2}]
EMBEDDINGS: list[dict[str, Any]] = [_MODEL, {**_MODEL, "prompt": "a"}]
SHOW: list[dict[str, Any]] = [_MODEL, {"name": "model:latest"}]
PULL: list[dict[str, Any]] = [_MODEL, {"name": "model", "stream": False}]
NO_BODY = [None]
