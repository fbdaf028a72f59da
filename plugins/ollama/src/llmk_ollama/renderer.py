"""Responses to ``/api/chat`` and ``/api/generate``, as lines and complete."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from llmk.api import AnswerDelta, Event, Frame, ReasoningDelta, TextDelta, TokenCounts
from llmk.api.http.calls import CompleteCall, CompleteCalls
from llmk_ollama.translation import timestamp

Wire = dict[str, Any]


class Pieces:
    """The pieces of a response: texts, thoughts, and tool calls, each sent when it is complete."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._calls = CompleteCalls()
        self._num_calls = 0

    def of(self, event: Event) -> Wire | None:
        """One event as fields of a message, if it has any."""
        match self._calls.of(event):
            case TextDelta(text) if text:
                return {"content": text}
            case ReasoningDelta(text) if text:
                return {"content": "", "thinking": text}
            case CompleteCall() as call:
                return {"content": "", "tool_calls": [self._call(call)]}
        return None

    def _call(self, call: CompleteCall) -> Wire:
        number, self._num_calls = self._num_calls, self._num_calls + 1
        id = call.id or f"call_{self._id[:8]}{call.index:04}"
        return {"id": id, "function": {"index": number, "name": call.name, "arguments": call.arguments}}


class LineRenderer:
    """Renders one response. ``options`` are those of the request; ``is_chat``: the response is a message, not fields
    of the line itself."""

    def __init__(self, id: str, options: Mapping[str, Any], *, is_chat: bool) -> None:
        self._model, self._arrived = options["model"], options["arrived"]
        self._is_chat = is_chat
        self._pieces = Pieces(id)
        self._first = 0
        self._finish_reason = "stop"
        self._parts: dict[str, list[str]] = {"content": [], "thinking": []}
        self._calls: list[Wire] = []

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Frame]:
        """One line for each run of events of a kind."""
        for fields in self._fields(delta):
            yield Frame({**self._head(), **self._shown(fields), "done": False})

    def last_frames(self, usage: TokenCounts) -> Iterator[Frame]:
        """The line with why the response ended, and its counts and times."""
        yield Frame({**self._head(), **self._shown({"content": ""}), **self._end(usage)})

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """Adds a delta to the complete response."""
        for fields in self._fields(delta):
            for name, pieces in self._parts.items():
                pieces.append(fields.get(name, ""))
            self._calls += fields.get("tool_calls", ())

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The complete response."""
        fields: Wire = {name: text for name, pieces in self._parts.items() if (text := "".join(pieces))}
        fields = {"content": "", **fields} | ({"tool_calls": self._calls} if self._calls else {})
        return {**self._head(), **self._shown(fields), **self._end(usage)}

    def _fields(self, delta: AnswerDelta) -> Iterator[Wire]:
        self._first = self._first or time.monotonic_ns()
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
        run: Wire = {}
        for event in delta.events:
            if (fields := self._pieces.of(event)) is None:
                continue
            if run and run.keys() == fields.keys():
                run = {name: run[name] + fields[name] for name in run}
                continue
            if run:
                yield run
            run = fields
        if run:
            yield run

    def _head(self) -> Wire:
        return {"model": self._model, "created_at": timestamp()}

    def _shown(self, fields: Wire) -> Wire:
        if self._is_chat:
            return {"message": {"role": "assistant", **fields}}
        return {{"content": "response"}.get(name, name): value for name, value in fields.items()}

    def _end(self, usage: TokenCounts) -> Wire:
        now = time.monotonic_ns()
        first = self._first or now
        return {
            "done": True,
            "done_reason": "length" if self._finish_reason == "length" else "stop",
            "total_duration": now - self._arrived,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": first - self._arrived,
            "eval_count": usage.completion_tokens,
            "eval_duration": now - first,
        }
