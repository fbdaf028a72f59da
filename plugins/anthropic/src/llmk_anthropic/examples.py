"""Requests for the conformance kit."""

from __future__ import annotations

from typing import Any

_HI: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "Hi"}]}
_TOOL = {"name": "f", "input_schema": {"type": "object"}}
_CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
_RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"}]}
_TURN = [
    *_HI["messages"],
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, _CALL]},
    {"role": "user", "content": [_RESULT]},
]

COUNT: list[dict[str, Any]] = [_HI, {**_HI, "messages": _TURN, "system": "Be short.", "tools": [_TOOL]}]
MESSAGES: list[dict[str, Any]] = [
    *({**body, "max_tokens": 9} for body in COUNT),
    {**_HI, "max_tokens": 9, "stream": True, "thinking": {"type": "adaptive", "display": "omitted"}},
]
