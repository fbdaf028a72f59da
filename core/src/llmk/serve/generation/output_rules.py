"""Rules of a request that are applied to its parsed output: stop strings, the number of tool calls, and the schemas of
strict tools."""

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
from llmk.engine.text.stop_strings import StopStrings
from llmk.serve.protocol.tool_schema import mismatch


class OutputRules(msgspec.Struct, frozen=True):
    """A request's rules for its output. ``stop`` are stop strings for the content; they are ignored in reasoning and in
    tool calls, and before ``min_tokens``. With ``one_call``, the output ends after the first tool call. ``strict`` are
    the schemas of the arguments of strict tools, by name.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    one_call: bool = False
    strict: dict[str, dict[str, Any]] = {}


NO_OUTPUT_RULES = OutputRules()


class OutputFilter:
    """Applies the ``rules`` of a request to the events of one choice.

    ``closed`` is set when the output has ended by a rule; ``stop_reason`` is the stop string, if that was the reason.
    """

    def __init__(self, rules: OutputRules) -> None:
        self._rules = rules
        self._stops = StopStrings(rules.stop, include=rules.include_stop) if rules.stop else None
        self._num_tokens = 0
        self._between = False
        """Whether there was only white space since the reasoning: it is a separator, in which stop strings are
        ignored."""
        self._strict: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
        self.closed = False
        self.stop_reason: str | None = None

    def pass_on(self, events: Iterable[Event], num_tokens: int, *, ended: bool) -> list[Event]:
        """The events of the next ``num_tokens`` tokens that the rules permit. ``ended``: they are the last ones."""
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
        """Text that was held back because it could be the start of a stop string, which other events can't be part
        of."""
        if self._stops is not None:
            if held := self._stops.finish():
                yield TextDelta(held)
            self._stops = StopStrings(self._rules.stop, include=self._rules.include_stop)


def call_error(event: Event) -> str | None:
    """The error code of a tool call that ends with ``event``, if it is invalid."""
    if isinstance(event, ToolCallFailed):
        return "invalid_call"
    return "schema_mismatch" if isinstance(event, ToolCallEnd) and event.mismatch else None
