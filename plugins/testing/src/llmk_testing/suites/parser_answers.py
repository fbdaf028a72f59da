"""Cases of text that is no call: answers in JSON, in code and with markup, and markers inside of arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from llmk.api import CallWriter, ParserContext, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case
from llmk_testing.parsers import Factory
from llmk_testing.suites.parser_grammar import Grammar
from llmk_testing.written_calls import own_marks

ANSWERS = (
    '{"city": {"name": "Oslo"}, "days": [1, {"a": 2}]}',
    'It is {"f": {"a": 1}}, I think.',
    '[{"city": "Oslo"}, {"city": "Bergen"}]',
    '{"f": {}}\n{"g": {"x": [1]}}',
    "Use `sort(key=len)`, or:\n\n    print(sorted(x, key=len))\n",
    "x[0] = f(1)\ny = [g(x=1) for x in z]",
    '<p class="a">It is <b>4</b>.</p>',
    'a -> b, "c": d; e | f',
    '```json\n{"name": "Oslo", "population": 700000}\n```',
)
"""Answers that are no calls in any dialect."""
_TOOL = {
    "name": "say_it",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
}


def answer_cases(
    spec: ParserSpec, made: Callable[[ParserContext], Factory], case: Callable[..., Case]
) -> Iterator[Case]:
    """The cases of one dialect."""
    yield case("answers in JSON, in code and with markup come back", check_answers, made)
    if spec.writer and not spec.special_tokens:  # which no text has in it
        make = made(ParserContext(tools=(_TOOL,)))
        yield case("markers that the grammar allows inside of arguments come back", check_marks, spec, make)


def check_answers(made: Callable[[ParserContext], Factory]) -> str:
    """Also with tools in the request, which the answer does not call."""
    for context in (ParserContext(), ParserContext(tools=(_TOOL,))):
        for text in ANSWERS:
            answer = parsers.check_chunking(made(context), text, rounds=1)
            assert (answer.content, answer.calls) == (text, []), f"{text!r} comes back as {answer}"
    return f"{len(ANSWERS)} answers"


def check_marks(spec: ParserSpec, make: Factory) -> str:
    """A parser may take a marker for the end of a text; its grammar must forbid it then."""
    writer: CallWriter = load_object(spec.writer)
    grammar, count = Grammar(writer, many=True, tools=[_TOOL]), 0
    stops = [stop for stop in getattr(writer, "stops", ()) if stop]
    for mark in own_marks(writer):
        for text in (mark, f"a {mark} b", f"{mark[:-1]}", f"{mark} {mark}"):
            try:
                written = writer.render([WrittenCall("say_it", {"text": text}, "call_x")])
            except (RequestError, ValueError):
                continue
            if not any(stop in text for stop in stops) and grammar.allows(written):
                calls = parsers.check_chunking(make, written, rounds=1).calls
                found = [json.loads(call.arguments) for call in calls]
                assert found == [{"text": text}], f"arguments {found}, expected {text!r}: {written!r}"
                count += 1
    return f"{count} texts"
