"""OpenAI's chat completion objects, complete and as chunks. Complete ones are assembled from the same deltas."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Protocol

from msgspec import Raw

from llmk.api import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk.engine.wire.request import TokenLogprobs
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.generation.output_rules import call_error
from llmk.serve.http.json_response import encoded

Wire = dict[str, Any]

_INVALID_CALL = "the call broke off, or its arguments are not JSON; 'content' has its text"


def usage_object(usage: Usage) -> Wire:
    """The ``usage`` of a response."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class Tokens(Protocol):
    """Text and bytes of single tokens."""

    def token_text(self, token_id: int) -> str:
        """The text of a token within a longer text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may be part of a character."""
        ...


class ChatRenderer:
    """Renders one chat completion. ``logprobs``: whether the client requested log-probabilities."""

    def __init__(
        self, head: Wire, tokens: Tokens, *, logprobs: bool, include_usage: bool, continuous_usage: bool = False
    ) -> None:
        self._head = head
        self._continuous_usage = continuous_usage
        self._tokens = tokens
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._started: set[int] = set()
        self._choices: dict[int, Wire] = {}
        self._call_errors: dict[int, list[Wire]] = {}

    def chunks(self, delta: ChoiceDelta, usage: Usage) -> Iterator[Wire]:
        """The chunks of one delta: the role when a choice starts, one for each run of events of a kind, and the end."""
        so_far = usage_object(usage) if self._continuous_usage else None
        if delta.index not in self._started:
            self._started.add(delta.index)
            yield self._chunk(so_far, delta.index, {"role": "assistant", "content": ""})
        for wire, entries in self._wires(delta):
            yield self._chunk(so_far, delta.index, wire, entries)
        errors = self._errors(delta)
        if delta.finish_reason is not None:
            end = {"stop_reason": delta.stop_reason, **errors}
            yield self._chunk(so_far, delta.index, {}, None, delta.finish_reason, **end)

    def last_chunks(self, usage: Usage) -> Iterator[Wire]:
        """The chunks after the last delta."""
        if self._include_usage:
            yield self._envelope([], usage_object(usage))

    def add(self, delta: ChoiceDelta, usage: Usage) -> None:
        """Adds a delta to the complete response."""
        choice = self._choices.setdefault(delta.index, _empty_choice(delta.index))
        for wire, entries in self._wires(delta):
            _fold(choice["message"], wire)
            if entries is not None:
                choice["logprobs"] = choice["logprobs"] or _logprobs([])
                choice["logprobs"]["content"] += entries
        for event in delta.events:
            if isinstance(event, ToolCallFailed):
                _drop_call(choice["message"], event.index)
        errors = self._errors(delta)
        if delta.finish_reason is not None:
            choice |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason, **errors}

    def whole(self, usage: Usage) -> Wire:
        """The complete response, after all deltas were added."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            if "tool_calls" in choice["message"] and not choice["message"]["content"]:
                choice["message"]["content"] = None
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage_object(usage)}

    def _wires(self, delta: ChoiceDelta) -> Iterator[tuple[Wire, list[Raw] | None]]:
        """Deltas in the API's format. Log-probabilities are in the first, or in an empty one if text is held back."""
        entries = [self._entry(logprobs) for logprobs in delta.logprobs] if self._logprobs else None
        for wire in wires(delta.events) or ([{}] if entries else []):
            yield wire, entries or None
            entries = None

    def _errors(self, delta: ChoiceDelta) -> Wire:
        """The field with the errors of the choice's tool calls so far; empty if there were no errors."""
        errors = self._call_errors.setdefault(delta.index, [])
        for event in delta.events:
            if isinstance(event, ToolCallFailed | ToolCallEnd) and (code := call_error(event)) is not None:
                message = event.mismatch if isinstance(event, ToolCallEnd) else _INVALID_CALL
                errors.append({"index": event.index, "code": code, "message": message})
        return {"tool_call_errors": errors} if errors else {}

    def _entry(self, logprobs: TokenLogprobs) -> Raw:
        """Encoded immediately: a response may have a million entries, and encoding all at the end would take long."""
        top = [self._token(token_id, logprob) for token_id, logprob in logprobs.top]
        return encoded({**self._token(logprobs.token_id, logprobs.logprob), "top_logprobs": top})

    def _token(self, token_id: int, logprob: float) -> Wire:
        text, raw = self._tokens.token_text(token_id), self._tokens.token_bytes(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(raw)}

    def _chunk(
        self,
        usage: Wire | None,
        index: int,
        wire: Wire,
        entries: list[Raw] | None = None,
        finish_reason: str | None = None,
        **extra: Any,
    ) -> Wire:
        logprobs = _logprobs(entries) if entries else None
        choice = {"index": index, "delta": wire, "logprobs": logprobs, "finish_reason": finish_reason, **extra}
        return self._envelope([choice], usage)

    def _envelope(self, choices: list[Wire], usage: Wire | None) -> Wire:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return {**chunk, "usage": usage} if self._include_usage or self._continuous_usage else chunk


def wires(events: Iterable[Event]) -> list[Wire]:
    """Events as ``delta`` objects of the API, one for each run of a kind."""
    return [wire for kind, run in groupby(events, _kind) if (wire := _WIRES[kind](run))]


def _empty_choice(index: int) -> Wire:
    message = {"role": "assistant", "content": ""}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None, "stop_reason": None}


def _logprobs(entries: list[Raw]) -> Wire:
    return {"content": entries, "refusal": None}


def _kind(event: Event) -> type:
    if isinstance(event, TextDelta | ToolCallFailed):
        return TextDelta
    return ReasoningDelta if isinstance(event, ReasoningDelta) else ToolCallStart


def _text_wire(events: Iterable[Any]) -> Wire:
    text = "".join(event.text for event in events)
    return {"content": text} if text else {}


def _reasoning_wire(events: Iterable[Any]) -> Wire:
    text = "".join(event.text for event in events)
    return {"reasoning_content": text} if text else {}


def _tool_wire(events: Iterable[Any]) -> Wire:
    calls: dict[int, Wire] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            id = event.id or f"call_{uuid.uuid4().hex[:24]}"
            calls[event.index] = {"index": event.index, "id": id, "type": "function", "function": function}
        elif isinstance(event, ToolCallArguments):
            call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    return {"tool_calls": list(calls.values())} if calls else {}


_WIRES: dict[type, Callable[[Iterable[Any]], Wire]] = {
    TextDelta: _text_wire,
    ReasoningDelta: _reasoning_wire,
    ToolCallStart: _tool_wire,
}


def _drop_call(message: Wire, index: int) -> None:
    calls = [call for call in message.pop("tool_calls", ()) if call["index"] != index]
    if calls:
        message["tool_calls"] = calls


def _fold(message: Wire, wire: Wire) -> None:
    """Adds a delta of the API to a message, as clients do."""
    for name in ("content", "reasoning_content"):
        if name in wire:
            message[name] = message.get(name, "") + wire[name]
    for part in wire.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if "id" in part:
            calls.append({**part, "function": dict(part["function"])})
            continue
        call = next(call for call in calls if call["index"] == part["index"])
        call["function"]["arguments"] += part["function"]["arguments"]
