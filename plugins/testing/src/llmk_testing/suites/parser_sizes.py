"""Cases of values of any size, of when they come out, and of tools whose schemas say little."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from llmk.api import (
    CallWriter,
    ParserContext,
    ParserSpec,
    RequestError,
    TextDelta,
    ToolCallArguments,
    WrittenCall,
)
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case
from llmk_testing.parsers import PLAIN, Answer, Factory

_TEXTS = ("a", "\n", '"', "\\", "'", "é😀", "{", "]", "<", "a\nb", 'a "b" c', "C:\\dir\\x", "\u2028", "a: b, c=d")
"""Texts with the characters that dialects escape, or end a text with."""
_COMMON, _DEEP = (2, 5, 8), (30, 70, 150)
_VALUE = 7316519842003
"""Stands for the value in a rendered call."""
_LONG = (700, 10_000)
LITTLE: tuple[Mapping[str, Any], ...] = (
    {},
    {"parameters": None},
    {"parameters": {}},
    {"parameters": {"type": "object"}},
    {"parameters": {"type": "object", "properties": {}}},
    {"parameters": {"properties": {}, "required": []}},
)
"""What function objects say of a tool without arguments."""
_FREE = {"name": "say_it", "parameters": {"type": "object", "properties": {"free": {}, "at": {"type": "object"}}}}


def size_cases(spec: ParserSpec, made: Callable[[ParserContext], Factory], case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    yield case("values nested as deeply as may be come back, or nothing is lost", check_depths, spec, made)
    yield case("long values come back, or nothing is lost", check_lengths, spec, made)
    yield case("calls of tools whose schemas say little come back", check_little, spec, made)
    yield case("calls are complete before the answer is", check_complete, spec, made)
    yield case("arguments come out as soon behind any character", check_streams, spec, made)


def check_depths(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """Objects and lists in each other: a parser may have a limit, as Python's own reader has."""
    make, count = made(ParserContext(tools=(_FREE,))), 0
    for depth in (*_COMMON, *_DEEP):
        for innermost in ({"x": 1}, ["x"]):
            value: Any = innermost
            for _ in range(depth):
                value = {"k": value} if isinstance(value, list) else [value]
            count += _check(spec, make, {"at": {"k": value}}, must=depth in _COMMON)
    writer: CallWriter = load_object(spec.writer)
    text = writer.render([WrittenCall("say_it", {"at": {"k": _VALUE}}, "call_x")])
    count += _comes_back(make, text.replace(str(_VALUE), '[{"k": ' * 1000 + "1" + "}]" * 1000), must=False)
    return f"{count} values"


def check_lengths(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """Texts, numbers, lists, objects, and the arguments of a call."""
    make, count = made(ParserContext(tools=(_FREE,))), 0
    for size in _LONG:
        values = ("a b" * size, [1] * size, {f"k{number}": None for number in range(size // 100)})
        count += sum(_check(spec, make, {"at": {"k": value}}, must=True) for value in values)
    count += _check(spec, make, {f"k{number}": number for number in range(300)}, must=True)
    for digits in (300, 600, 4000):
        count += _check(spec, make, {"at": {"k": 10**digits}}, must=False)
    return f"{count} values"


def check_complete(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """With text behind a call, it does not wait for the end of the answer."""
    writer: CallWriter = load_object(spec.writer)
    for text in (*_TEXTS, "it's 'so', x='y'"):
        arguments = {"text": text, "count": 1}
        try:
            written = writer.render([WrittenCall("say_it", arguments, "call_x")])
        except (RequestError, ValueError):
            continue
        for chunks in ([*(written + PLAIN)], [written + PLAIN]):
            parser = made(ParserContext())()
            for chunk in chunks:
                parsers.pushed(parser, chunk)
            late = [event for event in parser.finish() if not isinstance(event, TextDelta)]
            assert not late, f"{late} comes with the end of the answer alone, behind {written + PLAIN!r}"
    return f"{len(_TEXTS) + 1} calls"


def check_streams(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> str:
    """If a text without special characters comes out while it is written, so does one with them. A call may come out
    when it is complete; what is passed on before is not its start alone."""
    writer: CallWriter = load_object(spec.writer)
    tool = {"name": "say_it", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}

    def seen(text: str) -> int:
        """How much of the arguments comes out before the end of the text."""
        parser = made(ParserContext(tools=(tool,)))()
        written = writer.render([WrittenCall("say_it", {"text": text + "MARK"}, "call_x")])
        events = [event for character in written[: written.rindex("MARK")] for event in parser.push(character)]
        return sum(len(event.text) for event in events if isinstance(event, ToolCallArguments))

    if not seen("x" * 300):
        return "it returns arguments when they are complete"
    for text in _TEXTS:
        count = seen(text + "x" * 300)
        assert count > 200, f"{count} characters of arguments come out before the end of {text!r} and 300 others"
    return f"{len(_TEXTS)} texts"


def _check(spec: ParserSpec, make: Factory, arguments: dict[str, Any], *, must: bool) -> bool:
    """Whether a call comes back; it ``must`` where its writer renders it."""
    writer: CallWriter = load_object(spec.writer)
    stops = [stop for stop in getattr(writer, "stops", ()) if stop]
    try:
        written = json.dumps(arguments)
        text = writer.render([WrittenCall("say_it", arguments, "call_x")])
    except (RequestError, ValueError, RecursionError):
        return False
    return not any(stop in written for stop in stops) and _comes_back(make, text, must=must)


def _comes_back(make: Factory, text: str, *, must: bool) -> bool:
    answers = [_parsed(make, chunks) for chunks in ([text], [text[at : at + 997] for at in range(0, len(text), 997)])]
    assert answers[0] == answers[1], f"the cut changes the answer to {_short(text)}"
    (answer, _), back = answers, False
    if answer.calls and not answer.content:
        with suppress(RecursionError):  # JSON has no limit, and Python's reader has one
            parsers.check_json(answer.calls[0])
        back = answer.calls[0].name == "say_it"
    else:
        assert "say_it" in answer.content, f"{_short(text)} is lost"
    assert back or not must, f"no call is found in {_short(text)}"
    return back


def _parsed(make: Factory, chunks: list[str]) -> Answer:
    try:
        return parsers.parse(make, chunks)
    except RecursionError as error:
        raise AssertionError(f"raised {error!r} on {_short(''.join(chunks))}") from error


def _short(text: str) -> str:
    return repr(text if len(text) < 400 else f"{text[:200]} ({len(text)} characters) {text[-200:]}")


def check_little(spec: ParserSpec, made: Callable[[ParserContext], Factory]) -> None:
    """No parameters, or none that are named: also of arguments that a tool does not name."""
    writer: CallWriter = load_object(spec.writer)
    for little in LITTLE:
        make = made(ParserContext(tools=({"name": "now", "description": "", **little},)))
        text = writer.render([WrittenCall("now", {}, "call_now")])
        answer = parsers.check_chunking(make, text, rounds=1)
        found = [(call.name, call.arguments) for call in answer.calls]
        assert found == [("now", "{}")], f"calls {found}, expected one of now, whose tool says {little}: {text!r}"
