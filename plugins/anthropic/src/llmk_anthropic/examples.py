"""For the conformance kit: what requests mean, and what clients of the Messages API get."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

from llmk.api import CachedPrefix, Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk.api.http.calls import CompleteCall, arguments_of
from llmk_testing.route_examples import ERROR, MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

_USER = {"role": "user", "content": "Hi"}
_HI: dict[str, Any] = {"model": "model", "messages": [_USER]}
_TOOL = {"name": "f", "input_schema": {"type": "object"}}
_MADE_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
_RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"}]}
_TURN = [
    _USER,
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, _CALL]},
    {"role": "user", "content": [_RESULT]},
]
_MADE_CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
_MADE_TURN = [
    {"role": "system", "content": "Be short."},
    _USER,
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [_MADE_CALL]},
    {"role": "tool", "content": "1", "tool_call_id": "toolu_1"},
]
_TALK = {**_HI, "messages": _TURN, "system": "Be short.", "tools": [_TOOL]}
_MADE_TALK = {"model": "model", "messages": _MADE_TURN, "tools": [_MADE_TOOL]}
_SCHEMA = {"type": "object", "properties": {}}
_FORMAT = {"type": "json_schema", "schema": _SCHEMA}
_MADE_FORMAT = {"type": "json_schema", "json_schema": {"name": "output", "schema": _SCHEMA}}
_SAME: dict[str, Any] = {"temperature": 0.0, "top_p": 0.5, "top_k": 0}


def _message(
    more: dict[str, Any], means: dict[str, Any], *, thinking: bool | str = False, **fields: Any
) -> RouteExample:
    """A request with more fields, and what they become."""
    body = {"max_tokens": 9, **_HI, **more}
    means = {"max_tokens": 9, **_HI, **means}
    made = TranslatedRequest("chat", means, thinking=thinking, fit_max_tokens=True, **fields)
    return RouteExample(body, made)


_CACHED = {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}
_SYSTEM = {"role": "system", "content": "Be short."}
_REQUESTS = (
    _message({}, {}),
    _message(_TALK, _MADE_TALK),
    _message({"stop_sequences": ["END"], **_SAME}, {"stop": ["END"], **_SAME}),
    _message({"stream": True, "thinking": {"type": "adaptive", "display": "omitted"}}, {}, thinking=True, stream=True),
    _message(
        {"thinking": {"type": "enabled", "budget_tokens": 5}, "output_config": {"effort": "max", "format": _FORMAT}},
        {"response_format": _MADE_FORMAT},
        thinking="high",
    ),
    _message(
        {**_TALK, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {**_MADE_TALK, "tool_choice": "required", "parallel_tool_calls": False},
    ),
    _message(
        {**_TALK, "tool_choice": {"type": "tool", "name": "f"}},
        {**_MADE_TALK, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    _message(
        {"messages": [_USER, {"role": "assistant", "content": "Well,"}]},
        {"messages": [_USER, {"role": "assistant", "content": "Well,"}], "continue_final_message": True},
    ),
    _message(
        {"system": [_CACHED]},
        {"messages": [_SYSTEM, _USER]},
        prefixes=[CachedPrefix([_SYSTEM, {"role": "user", "content": ""}], 300.0)],
    ),
    RouteExample({**_HI, "max_tokens": 0}, refused="max_tokens"),
    RouteExample({**_HI, "max_tokens": 9, "stop_sequences": [""]}, refused="stop_sequences.0"),
    RouteExample({**_HI, "max_tokens": 9, "tool_choice": {"type": "any"}}, refused="tool_choice"),
)


def _rendered(body: Any, spoken: Spoken) -> RouteAnswer:
    """A message of blocks: pieces of one kind that follow each other are one, each call is one."""
    hidden = body.get("thinking", {}).get("display") == "omitted"
    blocks, events = [], list[dict[str, Any]]()
    for at, (kind, pieces) in enumerate(_runs(spoken)):
        start, deltas, whole = _block(kind, pieces, spoken, hidden=hidden)
        blocks.append(whole)
        events.append({"type": "content_block_start", "index": at, "content_block": start})
        events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": at})
    end = _end(body, spoken)
    opening = {"type": "message_start", "message": _head(spoken, _usage(spoken.deltas[0][1]))}
    closing = {"type": "message_delta", "delta": end, "usage": _usage(spoken.usage)}
    events = [opening, {"type": "ping"}, *events, closing, {"type": "message_stop"}]
    whole = {**_head(spoken, _usage(spoken.usage)), "content": blocks, **end}
    return RouteAnswer([Frame(event, event["type"]) for event in events], whole)


def _runs(spoken: Spoken) -> Iterator[tuple[type, list[Any]]]:
    for kind, run in itertools.groupby(spoken.parts, type):
        parts = list(run)
        yield from [(kind, [part]) for part in parts] if kind is CompleteCall else [(kind, parts)]


def _block(
    kind: type, pieces: list[Any], spoken: Spoken, *, hidden: bool
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """A block: as it starts, its deltas, and complete."""
    if kind is CompleteCall:
        (call,) = pieces
        start = {"type": "tool_use", "id": call.id or f"toolu_{spoken.head.id[:20]}{call.index:04d}"}
        start["name"] = call.name
        whole = {**start, "input": arguments_of(call.text)}
        return {**start, "input": {}}, [{"type": "input_json_delta", "partial_json": call.text}], whole
    texts = [piece.text for piece in pieces]
    if kind is TextDelta:
        deltas = [{"type": "text_delta", "text": text} for text in texts]
        return {"type": "text", "text": ""}, deltas, {"type": "text", "text": "".join(texts)}
    assert kind is ReasoningDelta
    signature = base64.b64encode(hashlib.sha256("".join(texts).encode()).digest()).decode()
    shown = [] if hidden else texts
    deltas = [{"type": "thinking_delta", "thinking": text} for text in shown]
    deltas.append({"type": "signature_delta", "signature": signature})
    whole = {"type": "thinking", "thinking": "".join(shown), "signature": signature}
    return {"type": "thinking", "thinking": "", "signature": ""}, deltas, whole


def _head(spoken: Spoken, usage: dict[str, Any]) -> dict[str, Any]:
    pinned = spoken.usage.pinned_tokens
    kept = {"ephemeral_5m_input_tokens": pinned.get(300, 0), "ephemeral_1h_input_tokens": pinned.get(3600, 0)}
    return {
        "id": "msg_" + spoken.head.id,
        "type": "message",
        "role": "assistant",
        "model": spoken.head.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "cache_creation": kept, "service_tier": "standard"},
    }


def _end(body: Any, spoken: Spoken) -> dict[str, Any]:
    match spoken.end:
        case "tool_calls", _:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        case "length", _:
            whole = spoken.usage.completion_tokens >= body["max_tokens"]
            return {"stop_reason": "max_tokens" if whole else "model_context_window_exceeded", "stop_sequence": None}
        case _, str(text):
            return {"stop_reason": "stop_sequence", "stop_sequence": text}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(counts: Any) -> dict[str, Any]:
    kept = sum(counts.pinned_tokens.values())
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens - kept,
        "cache_creation_input_tokens": kept,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def _error(kind: str) -> Frame:
    error = {"type": kind, "message": MESSAGE}
    return Frame({"type": "error", "error": error, "request_id": ERROR["request_id"]}, "error")


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_ERRORS = {status: _error(kind) for status, kind in _KINDS.items()}
MESSAGES = RouteExamples(requests=_REQUESTS, oracle=_rendered, errors=_ERRORS)
_COUNTED = (({"count": 12, "tokens": []}, {"input_tokens": 12}), ({"count": 0, "tokens": []}, {"input_tokens": 0}))
COUNT = RouteExamples(
    requests=(
        RouteExample(_HI, TranslatedRequest("tokenize", _HI, thinking=False), results=_COUNTED),
        RouteExample(_TALK, TranslatedRequest("tokenize", _MADE_TALK, thinking=False)),
        RouteExample(
            {**_TALK, "tool_choice": {"type": "none"}},
            TranslatedRequest("tokenize", {"model": "model", "messages": _MADE_TURN}, thinking=False),
        ),
        RouteExample({**_HI, "messages": []}, refused="messages"),
    ),
    errors=_ERRORS,
)
