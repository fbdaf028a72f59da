"""Cases of values in calls, in dialects that write them as JSON: any JSON comes back, however it is written, and what
is no JSON does not come back as arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from string import ascii_letters, digits

from llmk.api import CallWriter, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case, Skip
from llmk_testing.parsers import Answer, Factory

_VALUE = 7316519842003
"""Stands for the value in a rendered call."""
JSON = (
    *("0", "-0", "-1", "10", "0.5", "-0.25", "1.50", "1e5", "1E+5", "2e-7", "1.5e07", "12345678901234567890", "0e0"),
    *("0.30000000000000004", "-1.2345678901234567", "1.7976931348623157e308", "5e-324", "9007199254740993"),
    *("true", "false", "null", "[]", "{}", "[ ]", "{ }", "[true,false,null]", "[1,2]", "[ 1 ,\t2 ]", "[[], [[]]]"),
    *('{"a":1}', '{ "a" : 1 , "b":[ ] }', '{"a": {"b": {"c": [{}]}}}', '{"":""}', '[{"a": 1}, {"b": 2}]'),
    *(
        '""',
        '"a"',
        '" a "',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\ud800\\udc00"',
        '"\\uDBFF\\uDFFF"',
        '"\\ud7ff\\ue000"',
        '"\\" \\\\ \\n\\r\\t\\b\\f"',
        '"é😀\u2028"',
        '"}]"',
        '"\\u0041"',
    ),
    *('"it\'s"', '"{\\"a\\": [1, \\"}\\"]}"', '"\\\\"', '"\\\\\\""', '["a", "b\\\\", "c"]', '"//"', '"null"', '"1"'),
)
"""Texts that JSON and Python read alike."""
HALVES = tuple(
    f'"{one}{other}"'
    for one in ("\\ud7ff", "\\ud800", "\\udbff", "\\udc00", "\\udfff", "\\ue000")
    for other in ("\\udbff", "\\udc00", "\\udfff", "\\ue000", "x", "")
)
"""Escapes at the ends of the ranges of halves of characters."""
NO_JSON = (
    *(
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "1.e5",
        "--1",
        "1-",
        "-01",
        "1.5.2",
        "1e5e5",
        "0x1F",
        "0x1e+5",
        "1_000",
        "00",
    ),
    *("tru", "nul", "falsey", "nulll", "TRUE", "None", "NaN", "Infinity", "-Infinity", "undefined", "1 2", "e5", "-a"),
    *(
        "[1,]",
        "[,1]",
        "[1 2]",
        "[,]",
        "[1}",
        "[",
        "]",
        "[[1]",
        '{"a"}',
        '{"a":}',
        '{"a" 1}',
        '{"a": 1,}',
        '{"a": 1]',
        "{,}",
    ),
    *("{a: 1}", "{1: 2}", '{"a": 1 "b": 2}', '{"a":: 1}', '{"a": 1, "b"}', '{"a", 1}', "{", '{"a": {"b": 1}', "'a'"),
    *(
        '"',
        '"a',
        'a"',
        '"\\x41"',
        '"\\u12"',
        '"\\u12g4"',
        '"\\u00e"',
        '"\\q"',
        '"a\nb"',
        '"\t"',
        '"\x00"',
        '"a" "b"',
        "/**/",
    ),
    *('"\\', '"\\u', '{"a\nb": 1}', '"\\ud83d"', ":", ",", '{"a": tru}', '{"a": 1.}', '{"a": [1 2]}', '["a\\x"]'),
)

_NAMES = (
    *("functions.get", "tools.get", "default_api.get", "a.b.c", "a:b", "get:0", "a/b", "a-b", "A.b-C_d", "mcp__a__get"),
    *("_a", "a_", "-a", "a-", "1a", "call", "function", "functions", "tool", "name", "arguments", "parameters", "null"),
)
"""Names of tools, as clients and MCP servers have them."""


def value_cases(spec: ParserSpec, make: Factory, bare: Factory, case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one dialect that has a writer. ``bare`` makes parsers for requests without tools."""
    yield case("JSON in a call comes back, however it is written", check_json_values, spec, make)
    yield case("what is no JSON does not come back as arguments", check_no_json, spec, make)
    yield case("arguments that are a text with JSON in it come back", check_unwrapped, spec, make)
    yield case("values with any character in any place come back, or nothing is lost", check_characters, spec, make)
    yield case("names of any letters come back", check_letters, spec, bare)
    yield case("a call whose name is missing is no call", check_names, spec, make)


def check_json_values(spec: ParserSpec, make: Factory) -> str:
    """Numbers, white space, escapes, and brackets in strings."""
    before, after = _around(spec)
    stops = [stop for stop in getattr(load_object(spec.writer), "stops", ()) if stop]
    values = [value for value in JSON if not any(stop in value for stop in stops)]
    for value in values:
        text = before + value + after
        answer = parsers.check_chunking(make, text, rounds=1)
        assert [call.name for call in answer.calls] == ["say_it"], f"no call is found in {text!r}: {answer}"
        found, right = json.loads(answer.calls[0].arguments), {"free": {"k": json.loads(value)}}
        same = json.dumps(found) == json.dumps(right)
        assert same, f"arguments {answer.calls[0].arguments}, expected {right}: {text!r}"
    return f"{len(values)} values"


def check_no_json(spec: ParserSpec, make: Factory) -> str:
    """Either there is no call, and nothing of it is lost, or its arguments are JSON."""
    before, after = _around(spec)
    for value in (*NO_JSON, *HALVES):
        text = before + value + after
        answer = parsers.check_chunking(make, text, rounds=1)
        for call in answer.calls:
            parsers.check_json(call)
            whole = not any("\ud800" <= character <= "\udfff" for character in call.arguments)
            assert whole, f"half a character, which can't be sent, is in the arguments {call.arguments!a} of {text!r}"
        kept = answer.content == text or (spec.special_tokens and "say_it" in answer.content)
        assert answer.calls or kept, f"{text!r} is no call and comes back as {answer}"
    return f"{len(NO_JSON) + len(HALVES)} values"


def check_unwrapped(spec: ParserSpec, make: Factory) -> str:
    """Models trained on OpenAI's format write arguments as a text, which is taken for what it says, or for a text."""
    before, after = _around(spec)
    (start, end), count = (f'{{"free": {{"k": {_VALUE}}}}}').split(str(_VALUE)), 0
    if not (before.endswith(start) and after.startswith(end)):
        raise Skip("its writer does not write all arguments as one object")
    stops = [stop for stop in getattr(load_object(spec.writer), "stops", ()) if stop]
    for value in (*JSON, *HALVES):
        inner = f'{{"free": {{"k": {value}}}}}'
        for outer in (json.dumps(inner), f'" {json.dumps(inner)[1:]}', _all_escaped(inner)):
            text = before.removesuffix(start) + outer + after.removeprefix(end)
            if any(stop in outer for stop in stops):
                continue
            answer = parsers.check_chunking(make, text, rounds=1)
            assert answer.calls or "say_it" in answer.content, f"{text!r} is lost: {answer}"
            for call in answer.calls:
                found = json.loads(call.arguments)
                same = found in (json.loads(outer), json.loads(json.loads(outer)))
                assert same, f"arguments {call.arguments}, expected {inner} or its text: {text!r}"
            count += 1
    return f"{count} texts"


def _all_escaped(text: str) -> str:
    """A JSON string of escapes alone."""
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)) + '"'


def check_characters(spec: ParserSpec, make: Factory) -> str:
    """One character before, in and behind a value: where that is JSON, it comes back."""
    before, after = _around(spec)
    stops = [stop for stop in getattr(load_object(spec.writer), "stops", ()) if stop]
    count = 0
    for character in map(chr, range(32, 127)):
        for place in ("{}1", "1{}", "[1{}2]", '{{"a"{}1}}', '{{"a": 1{}"b": 2}}', '"{}"', '"\\{}"'):
            value = place.format(character)
            if any(stop in value for stop in stops) or value == '"\\/"':  # JSON's "/", Python's "\\/"
                continue
            text = before + value + after
            answer, again = parsers.parse(make, [text]), parsers.parse(make, [*text])
            assert answer == again, f"by character {again}, in one piece {answer}: {text!r}"
            assert answer.calls or "say_it" in answer.content, f"{text!r} is lost: {answer}"
            _check_value(answer, value, text)
            count += 1
    return f"{count} values"


def _check_value(answer: Answer, value: str, text: str) -> None:
    """The value comes back if it is JSON; what else the dialect takes for a value is JSON in the call."""
    for call in answer.calls:
        parsers.check_json(call)
    try:
        right = {"free": {"k": json.loads(value)}}
    except ValueError:
        return
    same = len(answer.calls) == 1 and json.loads(answer.calls[0].arguments) == right
    assert same, f"{text!r} comes back as {answer}, expected {right}"


def check_names(spec: ParserSpec, make: Factory) -> None:
    """Clients can't call what has no name."""
    writer: CallWriter = load_object(spec.writer)
    for arguments in ({}, {"text": "x"}):
        text = writer.render([WrittenCall("say_it", arguments, "call_x")]).replace("say_it", "")
        names = [call.name for call in parsers.check_chunking(make, text, rounds=1).calls]
        assert all(names), f"calls of {names} in {text!r}"


def check_letters(spec: ParserSpec, make: Factory) -> str:
    """Any letter and digit at the start, inside and at the end of a tool's name; names with words that dialects have
    of their own and with marks between words are whole or text, unless its writer refuses them."""
    writer: CallWriter = load_object(spec.writer)
    for name in _NAMES:
        with suppress(RequestError, ValueError):
            text = writer.render([WrittenCall(name, {}, "call_x")])
            answer = parsers.parse(make, [text])
            found = [call.name for call in answer.calls]
            kept = found == [name] or (not found and name in answer.content)
            assert kept, f"calls of {found} in {text!r}"
    names = [f"t{one}t" for one in ascii_letters + digits] + [f"t{one}" for one in ascii_letters + digits]
    for name in [*names, *(f"{one}t" for one in ascii_letters)]:
        text = writer.render([WrittenCall(name, {}, "call_x")])
        found = [call.name for call in parsers.parse(make, [text]).calls]
        assert found == [name], f"calls of {found} in {text!r}"
    return f"{len(names)} names"


def _around(spec: ParserSpec) -> tuple[str, str]:
    """The text of a call before a value and behind it."""
    writer: CallWriter = load_object(spec.writer)
    text = writer.render([WrittenCall("say_it", {"free": {"k": _VALUE}}, "call_say_it")])
    if f'{{"k": {_VALUE}}}' not in text:
        raise Skip("its writer does not write objects as JSON")
    before, _, after = text.partition(str(_VALUE))
    return before, after
