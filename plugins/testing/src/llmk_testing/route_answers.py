"""What models may say, as routes get it, for the suite of routes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmk.api import (
    AnswerHead,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk_testing.route_examples import Spoken

HEAD = AnswerHead("0123456789abcdef" * 2, 1_700_000_001, "org/model")
_TEXTS = ("one", " two", "\n", "", "grün 日本", '"}', "<b>", "[DONE]", "\u2028", "data: x\n\n", "0", "\x00")
_NAMES = ("f", "g", "get_weather")
_ARGUMENTS = ("", "{}", '{"x": 1}', '{"city": "Z\\u00fcrich", "deep": {"a": [1, {}]}}', '{"x": 1e400}')
_ENDS: tuple[tuple[str, str | int | None], ...] = (
    ("stop", None),
    ("stop", "END"),
    ("stop", 7),
    ("length", None),
    ("tool_calls", None),
)


@dataclass(frozen=True, slots=True)
class Delta:
    """Follows :class:`llmk.api.AnswerDelta`."""

    events: Sequence[Event] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Follows :class:`llmk.api.TokenCounts`. No two are equal by default."""

    prompt_tokens: int = 31
    cached_tokens: int = 16
    pinned_tokens: Mapping[float, int] = field(default_factory=dict)
    completion_tokens: int = 0
    reasoning_tokens: int = 0


def said(*deltas: Delta, head: AnswerHead = HEAD, counts: Counts = Counts()) -> Spoken:
    """Deltas, with a token for each event."""
    number = thoughts = 0
    pairs = []
    for delta in deltas:
        number += len(delta.events) + 1
        thoughts += sum(isinstance(event, ReasoningDelta) for event in delta.events)
        pairs.append((delta, _counted(counts, number, thoughts)))
    return Spoken(head, pairs, _counted(counts, number, thoughts))


def _counted(counts: Counts, number: int, thoughts: int) -> Counts:
    return Counts(counts.prompt_tokens, counts.cached_tokens, counts.pinned_tokens, number, thoughts)


def call(index: int, name: str = "f", id: str | None = None, text: str = "{}") -> tuple[Event, ...]:
    """A call in one piece."""
    return ToolCallStart(index, name, id), ToolCallArguments(index, text), ToolCallEnd(index)


FIXED: tuple[Spoken, ...] = (
    said(Delta((), "stop")),
    said(Delta(), Delta((TextDelta(""),)), Delta((TextDelta("one"),)), Delta((TextDelta("two"),), "stop", "END")),
    said(
        Delta((ReasoningDelta("r"), TextDelta("one"), TextDelta(""), ReasoningDelta("s"), TextDelta("two")), "length")
    ),
    said(Delta((TextDelta("one"),)), Delta((*call(0), *call(1)), "tool_calls")),
    said(Delta(call(0, "f", "own")), Delta((TextDelta("one"),)), Delta((*call(1), TextDelta("two")), "stop")),
    said(
        Delta((TextDelta("one"), ToolCallStart(0, "f"), ToolCallStart(1, "g", "own"))),
        Delta((ToolCallArguments(1, '{"x": '), ToolCallArguments(0, "{}"), TextDelta("two"), ToolCallEnd(0))),
        Delta((ToolCallFailed(1, '<g>{"x": '),), "tool_calls"),
    ),
    said(Delta((ReasoningDelta("only thoughts"),)), Delta((), "length"), counts=Counts(31, 0, {300.0: 5, 3600.0: 7})),
    said(Delta((ToolCallStart(0, "f"),)), Delta((ToolCallEnd(0),), "tool_calls"), counts=Counts(31, 31)),
    said(
        Delta(tuple(ToolCallStart(number, f"f{number}") for number in range(12))),
        Delta(tuple(ToolCallArguments(number, f'{{"x": {number}}}') for number in reversed(range(12)))),
        Delta(tuple(ToolCallEnd(number) for number in range(12)), "tool_calls"),
    ),
)
"""Responses as parsers may yield them."""


def drawn(generator: random.Random, count: int) -> Iterator[Spoken]:
    """Responses of texts, thoughts and calls in any order, cut anywhere."""
    for number in range(count):
        events = list(_events(generator))
        deltas = []
        while events:
            size = generator.randrange(4)
            deltas.append(Delta(tuple(events[:size])))
            del events[:size]
        reason, stop = generator.choice(_ENDS)
        last = Delta(deltas.pop().events if deltas and generator.random() < 0.5 else (), reason, stop)
        pinned = {300.0: 3} if generator.random() < 0.3 else {}
        counts = Counts(100 + number, generator.choice((0, 50)), pinned)
        head = AnswerHead(f"{generator.getrandbits(128):032x}", 1_700_000_000 + number, "adapter")
        yield said(*deltas, last, head=head, counts=counts)


def _events(generator: random.Random) -> Iterator[Event]:
    """Calls are numbered from 0; every one that starts ends or fails."""
    calls = 0
    for _ in range(generator.randrange(9)):
        match generator.randrange(5):
            case 0 | 1:
                yield TextDelta(generator.choice(_TEXTS))
            case 2:
                yield ReasoningDelta(generator.choice(_TEXTS))
            case _:
                yield from _call(generator, calls)
                calls += 1


def _call(generator: random.Random, index: int) -> Iterator[Event]:
    id = generator.choice((None, None, f"own_{index}"))
    yield ToolCallStart(index, generator.choice(_NAMES), id)
    text = generator.choice(_ARGUMENTS)
    cut = generator.randrange(len(text) + 1)
    for piece in filter(None, (text[:cut], text[cut:])):
        yield ToolCallArguments(index, piece)
    yield ToolCallFailed(index, f"<call>{text}") if generator.random() < 0.2 else ToolCallEnd(index)


def places(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The texts of plain data, each with its place: names of fields, and what ``type`` says next to them."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        kind = value.get("type")
        here = f"{where}<{kind}>" if isinstance(kind, str) else where
        for name, each in value.items():
            if name != "type":
                yield from places(each, f"{here}.{name}")
    elif isinstance(value, Sequence):
        for each in value:
            yield from places(each, where)


def calls_of(value: Any, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """The innermost objects that have an ``id`` and, at any depth, one of ``names`` as ``name``."""
    if isinstance(value, Mapping):
        inner = [found for each in value.values() for found in calls_of(each, names)]
        if inner:
            return inner
        return [value] if "id" in value and any(f'"name": "{name}"' in json.dumps(value) for name in names) else []
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [found for each in value for found in calls_of(each, names)]
    return []
