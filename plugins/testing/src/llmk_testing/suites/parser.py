"""The cases of reasoning and tool parsers, over :mod:`llmk_testing.parsers`.

``ParserSpec.examples`` names a sequence of answers in the dialect: calls or reasoning, and text around them. Those that
are a :class:`~llmk_testing.parser_example.ParserExample` say what the parser must return.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from llmk.api import (
    ParserContext,
    ParserSpec,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.parser_example import ParserExample
from llmk_testing.parsers import PLAIN, Answer, Factory
from llmk_testing.suites.parser_claims import claim_cases
from llmk_testing.suites.parser_requests import CONTEXTS, request_cases
from llmk_testing.suites.parser_results import result_cases

EVENTS = {
    "reasoning_parser": (TextDelta, ReasoningDelta),
    "tool_parser": (TextDelta, ToolCallStart, ToolCallArguments, ToolCallEnd, ToolCallFailed),
}
"""The events that parsers of each kind may return."""

_NUMBER = re.compile(r"(?<=[:\[, ])\d+(?=[,}\] ])")
"""A JSON number, as far as it can be recognized in an unknown dialect."""

_MOST = 12
"""Examples that are cut everywhere, unless all is thorough. What each says is checked of all, cut at random."""


def parser_cases(spec: ParserSpec, bench: Bench, kind: str) -> Iterator[Case]:
    """The cases of one parser; ``kind`` is not part of its spec."""

    def case(name: str, run: Callable[..., str | None], *arguments: Any) -> Case:
        return Case(spec.id, kind, name, partial(run, *arguments))

    parser, seed = _Lazy(spec), bench.seed
    rounds, count, most = (32, 400, None) if bench.thorough else (8, 60, _MOST)
    examples = partial(_examples, spec, most)
    if spec.writer:
        yield case("its writer is an instance", check_instance, spec)
    yield from claim_cases(spec, examples, case)
    yield case("it finds in its examples what they are examples of", check_found, parser, examples, kind)
    for name, context in CONTEXTS.items():
        make = parser.factory(context)
        yield case(f"{name}, any cut of an example gives the same answer", check_cuts, make, examples, rounds, seed)
        yield case(f"{name}, hostile text raises nothing, however cut", check_hostile, make, examples, count, seed)
        yield case(f"{name}, plain text comes out whole, soon, and isn't kept", check_plain, make)
    make = parser.factory(ParserContext())
    yield case("an example may end anywhere", check_ends, make, examples)
    if kind == "tool_parser":
        yield case("arguments are JSON, however large the numbers in an example", check_large_numbers, make, examples)
    yield from result_cases(spec, bench, kind, parser.factory, partial(_answered, spec))
    yield case("it returns the events of its kind alone", check_events, make, examples, EVENTS[kind])
    yield from request_cases(parser.factory, examples, case)
    yield case("time is linear in an example's length", check_linear, make, examples)
    yield case("time is linear in plain text", parsers.check_linear, make, PLAIN, 4)


def check_instance(spec: ParserSpec) -> None:
    """A class would lack ``self`` wherever it is called."""
    found = load_object(spec.writer)
    assert not isinstance(found, type), f"writer = {spec.writer!r} names a class, an instance is needed"


def check_found(parser: _Lazy, examples: Callable[[], Sequence[str]], kind: str) -> str:
    """Some example must have reasoning, or a call with a name and JSON arguments."""
    answers = [parsers.parse(parser.factory(ParserContext()), [example]) for example in examples()]
    if kind == "reasoning_parser":
        assert any(answer.reasoning for answer in answers), f"no reasoning is found in any of {list(examples())}"
        return f"{sum(bool(answer.reasoning) for answer in answers)} of {len(answers)} with reasoning"
    calls = [call for answer in answers for call in answer.calls]
    assert calls, f"no call is found in any of {list(examples())}"
    for call in calls:
        assert call.name, f"a call without a name: {call}"
        parsers.check_json(call)
    return f"{len(calls)} calls"


def check_large_numbers(make: Factory, examples: Callable[[], Sequence[str]]) -> str:
    """If a model writes ``1e400``, Python parses ``inf`` and writes ``Infinity``, which is not valid JSON."""
    tried = 0
    for example in examples():
        for number in _NUMBER.finditer(example):
            text = f"{example[: number.start()]}1e400{example[number.end() :]}"
            for call in _parse(make, text).calls:
                parsers.check_json(call)
            tried += 1
    return f"{tried} numbers"


def check_cuts(make: Factory, examples: Callable[[], Sequence[str]], rounds: int, seed: int) -> None:
    """By character, with empty chunks, and at random."""
    for example in examples():
        parsers.check_chunking(make, example, rounds, seed)


def check_hostile(make: Factory, examples: Callable[[], Sequence[str]], count: int, seed: int) -> None:
    """Junk, and examples that are truncated and spliced, if there are any."""
    try:
        samples = examples()
    except Skip:
        samples = ()
    parsers.check_hostile(make, samples, count, seed)


def check_plain(make: Factory) -> None:
    """Text without markers must be returned in full, as content or as reasoning."""
    text = PLAIN * 8
    parsers.check_hold_back(make, text)
    answer = parsers.parse(make, [text])
    assert any(text in whole for whole in (answer.content, answer.reasoning)), f"{text!r} became {answer}"


def check_ends(make: Factory, examples: Callable[[], Sequence[str]]) -> None:
    """As when ``max_tokens`` is reached: nothing may raise, no call may stay open, and incomplete calls must fail."""
    for example in examples():
        for end in range(len(example)):
            for call in _parse(make, example[:end]).calls:
                parsers.check_json(call)


def check_events(make: Factory, examples: Callable[[], Sequence[str]], allowed: tuple[type, ...]) -> None:
    """Renderers support only these."""
    for example in examples():
        parser = make()
        for event in (*parser.push(example), *parser.finish()):
            names = ", ".join(kind.__name__ for kind in allowed)
            assert isinstance(event, allowed), f"{event!r} is not one of {names}; returned for {example!r}"


def check_linear(make: Factory, examples: Callable[[], Sequence[str]]) -> None:
    """Four times as much text must take about four times as many steps."""
    for example in examples():
        parsers.check_linear(make, example, times=max(2, 256 // len(example)))


class _Lazy:
    """The parser's class, imported when the first parser is created."""

    def __init__(self, spec: ParserSpec) -> None:
        self._spec = spec

    def factory(self, context: ParserContext) -> Factory:
        """A factory of parsers for a context."""

        def make() -> Any:
            return load_object(self._spec.implementation)(context)

        return make


def _examples(spec: ParserSpec, most: int | None) -> Sequence[str]:
    """The first texts, each once."""
    found = _named(spec)
    return list(dict.fromkeys(one.text if isinstance(one, ParserExample) else one for one in found))[:most]


def _answered(spec: ParserSpec) -> Sequence[ParserExample]:
    """Those whose answers are known."""
    return [one for one in _named(spec) if isinstance(one, ParserExample)]


def _named(spec: ParserSpec) -> Sequence[str | ParserExample]:
    if not spec.examples:
        raise Skip("the spec names no examples: answers in its dialect")
    found: Sequence[str | ParserExample] = load_object(spec.examples)
    good = not isinstance(found, str) and found and all(isinstance(one, str | ParserExample) and one for one in found)
    assert good, f"{spec.examples} is {found!r}, expected a sequence of non-empty strings or of ParserExample"
    return found


def _parse(make: Factory, text: str) -> Answer:
    try:
        return parsers.parse(make, [text])
    except AssertionError as error:
        raise AssertionError(f"{error}, where the text ends as {text!r}") from error
    except Exception as error:
        raise AssertionError(f"raised {error!r} where the text ends as {text!r}") from error
