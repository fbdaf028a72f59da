"""Responses as messages and as events of a stream (https://docs.anthropic.com/en/docs/build-with-claude/streaming)."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmk.api import AnswerDelta, AnswerHead, Event, Frame, ReasoningDelta, TextDelta, TokenCounts
from llmk.api.http.calls import CompleteCall, CompleteCalls, arguments_of
from llmk_anthropic.caching import SECONDS

Wire = dict[str, Any]

PING_SECONDS = 10.0
"""After this time without an event, a ``ping`` shows that the response goes on."""


class ContentEvents:
    """The events of the blocks of a response.

    Text and thinking are sent at once. A tool call is sent when it is complete: clients call the tool of every block
    they receive, and a call that fails becomes text.
    """

    def __init__(self, id: str, *, hide_thinking: bool) -> None:
        self._id, self._hide_thinking = id, hide_thinking
        self._index = -1
        self._open = ""
        self._digest = hashlib.sha256()
        self._calls = CompleteCalls()

    def of(self, event: Event) -> Iterator[Wire]:
        """The events of one event of the engine."""
        match self._calls.of(event):
            case TextDelta(text) if text:
                yield from self._text(text)
            case ReasoningDelta(text) if text:
                yield from self._thought(text)
            case CompleteCall() as call:
                yield from self._call(call)

    def close(self) -> Iterator[Wire]:
        """The events that stop the open block, if there is one."""
        if not self._open:
            return
        if self._open == "thinking":
            signature = base64.b64encode(self._digest.digest()).decode()
            yield self._delta({"type": "signature_delta", "signature": signature})
        self._open = ""
        yield {"type": "content_block_stop", "index": self._index}

    def _text(self, text: str) -> Iterator[Wire]:
        if self._open != "text":
            yield from self._start({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def _thought(self, text: str) -> Iterator[Wire]:
        if self._open != "thinking":
            yield from self._start({"type": "thinking", "thinking": "", "signature": ""})
            self._digest = hashlib.sha256()
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        if not self._hide_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def _call(self, call: CompleteCall) -> Iterator[Wire]:
        id = call.id or f"toolu_{self._id[:20]}{call.index:04}"
        yield from self._start({"type": "tool_use", "id": id, "name": call.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": call.text})
        yield from self.close()

    def _start(self, block: Wire) -> Iterator[Wire]:
        yield from self.close()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Wire) -> Wire:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


class MessageRenderer:
    """Renders one message. ``max_tokens`` is the request's limit; ``hide_thinking``: the text of thinking is not
    sent."""

    def __init__(self, head: AnswerHead, max_tokens: int, *, hide_thinking: bool = False) -> None:
        self._head = head
        self._max_tokens = max_tokens
        self._content = ContentEvents(head.id, hide_thinking=hide_thinking)
        self._finish: tuple[str, str | int | None] = "stop", None
        self._started = False
        self._last = time.monotonic()
        self._blocks: list[Wire] = []
        self._pieces: list[str] = []

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Frame]:
        """The events of one delta."""
        now = time.monotonic()
        for event in self._events(delta, usage):
            self._last = now
            yield _frame(event)
        if now - self._last > PING_SECONDS:
            self._last = now
            yield _frame({"type": "ping"})

    def last_frames(self, usage: TokenCounts) -> Iterator[Frame]:
        """The events that end the message."""
        for event in (*self._opening(usage), *self._content.close()):
            yield _frame(event)
        end = {"type": "message_delta", "delta": self._end(usage), "usage": _usage(usage)}
        yield _frame(end)
        yield _frame({"type": "message_stop"})

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        """Adds a delta to the complete message."""
        self._fold(self._events(delta, usage))

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        """The complete message."""
        self._fold(self._content.close())
        return {**self._message(usage), "content": self._blocks, **self._end(usage)}

    def _events(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Wire]:
        yield from self._opening(usage)
        for event in delta.events:
            yield from self._content.of(event)
        if delta.finish_reason is not None:
            self._finish = delta.finish_reason, delta.stop_reason

    def _opening(self, usage: TokenCounts) -> Iterator[Wire]:
        if not self._started:
            self._started = True
            yield {"type": "message_start", "message": self._message(usage)}
            yield {"type": "ping"}

    def _message(self, usage: TokenCounts) -> Wire:
        return {
            "id": f"msg_{self._head.id}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage(usage), "cache_creation": _created(usage), "service_tier": "standard"},
        }

    def _end(self, usage: TokenCounts) -> Wire:
        finish_reason, stop = self._finish
        if finish_reason == "tool_calls":
            reason = "tool_use"
        elif finish_reason == "length":
            full = usage.completion_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        else:
            reason = "stop_sequence" if isinstance(stop, str) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}

    def _fold(self, events: Iterable[Wire]) -> None:
        """Adds events to the blocks, as clients do. The pieces of a block are joined when it stops."""
        for event in events:
            if event["type"] == "content_block_start":
                self._blocks.append(event["content_block"])
                self._pieces = []
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "signature_delta":
                    self._blocks[-1]["signature"] = delta["signature"]
                else:
                    self._pieces.append(delta[_PIECES[delta["type"]]])
            elif event["type"] == "content_block_stop":
                block, text = self._blocks[-1], "".join(self._pieces)
                block[_FIELDS[block["type"]]] = arguments_of(text) if block["type"] == "tool_use" else text


_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "input"}


def _usage(usage: TokenCounts) -> Wire:
    created = sum(usage.pinned_tokens.values())
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _created(usage: TokenCounts) -> Wire:
    return {f"ephemeral_{ttl}_input_tokens": usage.pinned_tokens.get(s, 0) for ttl, s in SECONDS.items()}


def _frame(event: Wire) -> Frame:
    return Frame(event, event["type"])
