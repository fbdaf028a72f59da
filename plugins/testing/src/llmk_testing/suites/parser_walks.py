"""A case of a dialect's grammar: random texts that it allows are calls, as models write them under it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from llmk.api import CallWriter, ParserSpec, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.parsers import Factory
from llmk_testing.suites.parser_grammar import Grammar

_TEXTS = ("a", "Oslo", " ", "\n", "é", "😀", "<", "</", "{", "}", "[", "]", "'", '\\"', "\\n", "\\u00e9", "&", "=", ",")
_VALUES = ("0", "-12", "1.5e3", "null", "true", "false", '"', "c", "f", "x", "city", "days", "note", "tags")
_STEPS, _LONG = 400, 40
_WALKS = 6


def check_walks(spec: ParserSpec, make: Factory, seed: int) -> str:
    """One call or several: the parser finds calls alone, and these, written again, are what the grammar allows."""
    writer: CallWriter = load_object(spec.writer)
    count = 0
    for many in (False, True):
        grammar = Grammar(writer, many=many)
        for number in range(_WALKS):
            text = _text(grammar, _closers(writer), random.Random(seed + number))
            if text is not None:
                _check(writer, grammar, make, text, many=many)
                count += 1
    assert count, "no end was found of any text that the grammar allows"
    return f"{count} texts"


def _check(writer: CallWriter, grammar: Grammar, make: Factory, text: str, *, many: bool) -> None:
    answer = parsers.check_chunking(make, text, rounds=0)
    assert not answer.content, f"content {answer.content!r} is found in what the grammar allows: {text!r}"
    assert len(answer.calls) >= 1 if many else len(answer.calls) == 1, f"{answer.calls} are found in {text!r}"
    calls = [WrittenCall(call.name, json.loads(call.arguments), call.id or "call") for call in answer.calls]
    again = writer.render(calls)
    assert grammar.allows(again), f"the calls of {text!r} are against the grammar: {again!r}"
    found = [(call.name, json.loads(call.arguments)) for call in parsers.parse(make, [again]).calls]
    assert found == [(call.name, call.arguments) for call in calls], f"{again!r} comes back as {found}"


def _closers(writer: CallWriter) -> list[str]:
    """What is written behind a string, without its start or its end."""
    text = writer.render([WrittenCall("weather", {"city": "MARK", "days": 1}, "call_weather")])
    behind = text.partition("MARK")[2]
    ends = [behind[at:] for at in range(len(behind))] + [behind[:size] for size in range(len(behind), 0, -1)]
    return [*ends, '"', "}", "]"]


def _text(grammar: Grammar, closers: Sequence[str], generator: random.Random) -> str | None:
    """A text that the grammar allows: pieces that fit, and what it forces; ``None`` if no end was found for it.
    ``closers`` are tried first once it is long enough."""
    walk = grammar.walk()
    for step in range(_STEPS):
        if walk.may_end and (step > _LONG or generator.random() < 0.3):
            break
        pieces = [*(closers if step > _LONG else ()), *generator.sample((*_TEXTS, *_VALUES), 8)]
        if not walk.forced() and not any(walk.take(piece) for piece in (*pieces, *_characters(generator))):
            break
    return walk.text if walk.may_end else None


def _characters(generator: random.Random) -> Iterator[str]:
    """Any of ASCII."""
    yield from map(chr, generator.sample(range(32, 127), 95))
