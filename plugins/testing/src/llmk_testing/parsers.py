"""The conformance suite of reasoning and tool parsers. Call :func:`check_parser` from a test of your own.

Every check takes a *factory*, which makes a fresh parser (``lambda: Hermes(ParserContext())``), and raises
``AssertionError`` with the failing text.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any, NoReturn

from llmk.api import (
    Event,
    ReasoningDelta,
    ReasoningParser,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    ToolParser,
)

Parser = ReasoningParser | ToolParser
Factory = Callable[[], Parser]

PLAIN = "The quick brown fox jumps over the lazy dog, 3 < 4 and {x: [1]} too.\n"
"""Text without a marker of any dialect."""

_JUNK = (
    *("", " ", "\n", "\x00", "\ud83d", "\u2028", "\\", "\\u12", "\\ud83d", '"', "null"),
    *("{", "}", "[", "]", "<", ">", "</", "|", ":", ","),
    *('{"name": "f", "arguments": {"a": "}\\""}}', '{"name": ', '{"arguments": "{\\"a\\":', '{"name": 1}', '"x": {'),
)


@dataclass(slots=True)
class Call:
    """A tool call of a complete answer. ``arguments`` is JSON text."""

    name: str
    id: str | None = None
    arguments: str = ""
    ended: bool = False


@dataclass(slots=True)
class Answer:
    """The answer that a sequence of events describes."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)


def fold(events: Iterable[Event]) -> Answer:
    """Combines events into an answer, without failed calls. Raises ``AssertionError`` if calls are not numbered in
    order, or an event refers to a call that is not open."""
    reasoning: list[str] = []
    content: list[str] = []
    arguments: list[list[str]] = []
    failed: set[int] = set()
    answer = Answer()
    for event in events:
        match event:
            case TextDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart(index, name, id_):
                assert index == len(answer.calls), f"call {index} starts after {len(answer.calls)} calls"
                answer.calls.append(Call(name, id_))
                arguments.append([])
            case ToolCallArguments(index, text):
                assert _is_open(answer, index), f"arguments for a call that is not open: {event}"
                arguments[index].append(text)
            case ToolCallEnd(index):
                assert _is_open(answer, index), f"end of a call that is not open: {event}"
                answer.calls[index].ended = True
            case ToolCallFailed(index, text):
                assert _is_open(answer, index), f"failure of a call that is not open: {event}"
                answer.calls[index].ended = True
                failed.add(index)
                content.append(text)
    for call, pieces in zip(answer.calls, arguments, strict=True):
        call.arguments = "".join(pieces)
    answer.calls = [call for index, call in enumerate(answer.calls) if index not in failed]
    answer.reasoning, answer.content = "".join(reasoning), "".join(content)
    return answer


def _is_open(answer: Answer, index: int) -> bool:
    return index < len(answer.calls) and not answer.calls[index].ended


def parse(factory: Factory, chunks: Iterable[str]) -> Answer:
    """The answer of a fresh parser for ``chunks``. Raises ``AssertionError`` if a call does not end."""
    parser = factory()
    events = [event for chunk in chunks for event in parser.push(chunk)]
    answer = fold([*events, *parser.finish()])
    open_calls = [call for call in answer.calls if not call.ended]
    assert not open_calls, f"calls that never end: {open_calls}"
    return answer


def pushed(parser: Parser, text: str) -> list[Event]:
    """The events of the next piece, also of a parser that returns a generator."""
    return list(parser.push(text))


def chunkings(text: str, rounds: int = 8, seed: int = 0) -> Iterator[list[str]]:
    """Ways to split ``text``: whole, by character, with empty chunks in between, and ``rounds`` random ones."""
    yield [text]
    yield list(text)
    yield ["", *(piece for character in text for piece in (character, ""))]
    generator = random.Random(seed)
    for _ in range(rounds):
        cuts = sorted(generator.sample(range(len(text) + 1), generator.randint(0, len(text))))
        yield [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def check_chunking(factory: Factory, text: str, rounds: int = 8, seed: int = 0) -> Answer:
    """Checks that any chunking of ``text`` gives the same answer, and returns it."""
    expected = parse(factory, [text])
    for chunks in chunkings(text, rounds, seed):
        got = parse(factory, chunks)
        assert got == expected, f"split as {chunks!r}:\n  {got}\nbut in one piece:\n  {expected}"
    return expected


def hostile_texts(samples: Sequence[str], count: int = 100, seed: int = 0) -> Iterator[str]:
    """Malformed texts: ``samples`` with a few characters changed, or truncated, doubled, or spliced with each other and
    with junk."""
    generator = random.Random(seed)
    pieces = [*_JUNK]
    for sample in samples:
        cuts = sorted(generator.choices(range(len(sample) + 1), k=6))
        pieces += [sample[start:stop] for start, stop in pairwise(cuts)] + [sample]
    for number in range(count):
        if samples and number % 2:
            text = generator.choice(samples)
            for _ in range(generator.randint(1, 3)):
                start = generator.randint(0, len(text))
                text = text[:start] + generator.choice(_JUNK) + text[start + generator.randint(0, 3) :]
            yield text
        else:
            yield "".join(generator.choices(pieces, k=generator.randint(1, 12)))


def check_json(call: Call) -> None:
    """The arguments of a call must be JSON, which has no ``NaN`` and no ``Infinity``."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        json.loads(call.arguments, parse_constant=refuse)
    except ValueError as error:
        raise AssertionError(f"the arguments of {call} are not JSON: {error}") from error


def check_hostile(factory: Factory, samples: Sequence[str], count: int = 100, seed: int = 0) -> None:
    """Hostile texts must raise nothing, leave no call open, have no calls whose arguments are not JSON, and give the
    same answer for any chunking."""
    for text in hostile_texts(samples, count, seed):
        try:
            for call in check_chunking(factory, text, rounds=2, seed=seed).calls:
                check_json(call)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"raised {error!r} on {text!r}") from error


def check_hold_back(factory: Factory, text: str, limit: int = 64, before: str = "") -> None:
    """Fed character by character, the parser never holds back more than ``limit`` characters of ``text``.

    Nor does it keep more than twice as many in memory. ``text`` is plain content or reasoning, which a parser returns
    in full, behind ``before``.
    """
    parser = factory()
    for character in before:
        pushed(parser, character)
    lag, at_first = 0, retained_characters(parser)
    for character in text:
        events = pushed(parser, character)
        lag += 1 - sum(len(event.text) for event in events if isinstance(event, TextDelta | ReasoningDelta))
        assert lag <= limit, f"holds back {lag} characters, more than {limit}, of {text!r}"
        kept = retained_characters(parser) - at_first
        assert kept <= 2 * limit, f"keeps {kept} characters of {text!r} in memory"


def retained_characters(parser: object) -> int:
    """Characters of all strings that the parser's attributes hold, through containers and objects of its package."""
    seen: set[int] = set()
    package = type(parser).__module__.partition(".")[0]

    def count(value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if id(value) in seen:
            return 0
        seen.add(id(value))
        if isinstance(value, dict):
            return sum(map(count, value.values()))
        if isinstance(value, list | tuple | set | frozenset):
            return sum(map(count, value))
        if not isinstance(value, type) and type(value).__module__.partition(".")[0] == package:
            names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            slots = [getattr(value, name, None) for name in names]
            return sum(map(count, [*getattr(value, "__dict__", {}).values(), *slots]))
        return 0

    return count(parser)


class TooManyLines(BaseException):
    """Raised to stop code that runs too many lines."""


def counted_lines(run: Callable[[], object], limit: float = math.inf) -> int:
    """The number of Python lines that ``run`` executes: a measure of time that does not depend on the machine's load.
    It is stopped after ``limit`` lines."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines > limit:
            raise TooManyLines
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except TooManyLines:
        pass
    finally:
        sys.settrace(before)
    return lines


def check_linear(factory: Factory, text: str, times: int = 16) -> None:
    """Checks linear time: four times as much of ``text`` takes about four times the steps (lines executed), by
    character and in one chunk. A later state may cost more per character, so where that fails, longer texts decide."""

    def run(chunks: Sequence[str]) -> None:
        parser = factory()
        for chunk in chunks:
            pushed(parser, chunk)
        list(parser.finish())

    def is_linear(cut: Callable[[str], Sequence[str]], times: int) -> bool:
        limit = 8 * counted_lines(partial(run, cut(text * times))) + 1000  # quadratic time is 16 times
        return counted_lines(partial(run, cut(text * times * 4)), limit) <= limit

    cuts: tuple[Callable[[str], Sequence[str]], ...] = (list, lambda whole: [whole])
    for cut in cuts:
        ok = is_linear(cut, times) or is_linear(cut, times * 4)
        assert ok, f"{text!r}, four times as often, takes more than eight times the steps"


def check_parser(factory: Factory, samples: Sequence[str], *, hold_back: int = 64) -> None:
    """The whole suite. ``samples`` are answers in the parser's dialect: calls, reasoning, text around them."""
    for sample in samples:
        check_chunking(factory, sample)
        check_linear(factory, sample)
        for end in range(0, len(sample), max(1, len(sample) // 32)):
            parse(factory, [sample[:end]])
    check_hostile(factory, samples)
    check_hold_back(factory, PLAIN * 8, hold_back)
    check_linear(factory, PLAIN)
