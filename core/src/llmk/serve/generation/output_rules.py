"""What a client's request says on an answer once it has been read: where it ends, how many calls it may make, and what
the arguments of strict tools look like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from llmk.api import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk.engine.text.output_processor import StopStrings
from llmk.serve.protocol.tool_schema import mismatch


class OutputRules(msgspec.Struct, frozen=True):
    """What a request says on its answer. ``stop`` are texts that end the content; they don't count in thinking or in
    calls, nor before ``min_tokens``. ``one_call``: the answer ends with its first call. ``strict`` are the schemas of
    arguments, by the names of the tools that are strict.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    one_call: bool = False
    strict: dict[str, dict[str, Any]] = {}


NO_OUTPUT_RULES = OutputRules()


class OutputFilter:
    """Lets the events of one choice through as far as its request's ``rules`` go.

    ``closed`` is set when nothing more may come, ``stop_reason`` to the stop string where one was the reason.
    """

    def __init__(self, rules: OutputRules) -> None:
        self._rules = rules
        self._stops = StopStrings(rules.stop, include=rules.include_stop) if rules.stop else None
        self._num_tokens = 0
        self._between = False
        """Whether only blank space came since a thought: it separates, and is not yet content that could stop."""
        self._strict: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
        self.closed = False
        self.stop_reason: str | None = None

    def pass_on(self, events: Iterable[Event], num_tokens: int, *, ended: bool) -> list[Event]:
        """What is left of the events that came of the next ``num_tokens`` tokens. ``ended``: they are the last."""
        self._num_tokens += num_tokens
        passed: list[Event] = []
        for event in events:
            if self.closed:
                break
            passed += self._text(event) if isinstance(event, TextDelta) else self._other(event)
        if ended and not self.closed:
            passed += self._flushed()
        return passed

    def _text(self, event: TextDelta) -> Iterator[Event]:
        if self._stops is None or (self._between and not event.text.strip()):
            yield event
            return
        blank = event.text[: len(event.text) - len(event.text.lstrip())] if self._between else ""
        self._between = False
        text, stop = self._stops.push(event.text[len(blank) :], may_stop=self._num_tokens >= self._rules.min_tokens)
        if blank or text:
            yield TextDelta(blank + text)
        if stop is not None:
            self.closed, self.stop_reason = True, stop

    def _other(self, event: Event) -> Iterator[Event]:
        yield from self._flushed()
        if isinstance(event, ReasoningDelta):
            self._between = True
        elif isinstance(event, ToolCallStart) and event.name in self._rules.strict:
            self._strict[event.index] = self._rules.strict[event.name], []
        elif isinstance(event, ToolCallArguments) and event.index in self._strict:
            self._strict[event.index][1].append(event.text)
        elif isinstance(event, ToolCallFailed):
            self._strict.pop(event.index, None)
        elif isinstance(event, ToolCallEnd):
            self.closed = self._rules.one_call
            if event.index in self._strict:
                schema, pieces = self._strict.pop(event.index)
                event = ToolCallEnd(event.index, mismatch("".join(pieces), schema))
        yield event

    def _flushed(self) -> Iterator[Event]:
        """Text that was held back as it could have become a stop string; one does not go on behind other events."""
        if self._stops is not None:
            if held := self._stops.finish():
                yield TextDelta(held)
            self._stops = StopStrings(self._rules.stop, include=self._rules.include_stop)


def call_error(event: Event) -> str | None:
    """The code of what is wrong with a call that ends with ``event``, if something is."""
    if isinstance(event, ToolCallFailed):
        return "invalid_call"
    return "schema_mismatch" if isinstance(event, ToolCallEnd) and event.mismatch else None
