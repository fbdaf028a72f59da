"""Output rules of a request apply to content only, for any chunking of the text."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import AngleReasoning, BracketTools

from llmk.api import (
    Event,
    ParserContext,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
)
from llmk.serve.generation.output_rules import OutputFilter, OutputRules
from llmk.serve.generation.parsing import ParserChain, ParserKind
from llmk.serve.generation.reading import ChainReader

KINDS = [ParserKind("test.angle", AngleReasoning), ParserKind("test.bracket", BracketTools)]


def read(text: str, sizes: list[int], **rules: Any) -> tuple[str, str, ParserChain]:
    """The thought and the content of ``text``, which comes in pieces of ``sizes``, a token each."""
    chain, at, events = ParserChain(KINDS, ParserContext(), OutputRules(**rules)), 0, []
    for size in [*sizes, len(text)]:
        if not chain.gate.closed:
            events += chain.push(text[at : at + size], size, ended=at + size >= len(text))
        at += size
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    return thought, "".join(event.text for event in events if isinstance(event, TextDelta)), chain


SIZES = st.lists(st.integers(1, 4), max_size=40)


@given(SIZES)
def test_white_space_around_thinking_is_kept(sizes: list[int]) -> None:
    thought, content, _ = read("(\n I add.\n)\n\nIt is 4.\n", sizes)
    assert (thought, content) == ("\n I add.\n", "\n\nIt is 4.\n")


@given(SIZES)
def test_stop_strings_end_content_and_not_thinking(sizes: list[int]) -> None:
    thought, content, chain = read("(One\ntwo\n)\n\nIt is 4.\nYes.", sizes, stop=("\n", "4.\nY"))
    assert (thought, content) == ("One\ntwo\n", "\n\nIt is 4.")
    assert (chain.gate.closed, chain.gate.stop_reason) == (True, "\n")


@given(SIZES)
def test_what_could_become_a_stop_string_comes_before_what_follows(sizes: list[int]) -> None:
    thought, content, chain = read("ab(c)b[f]a", sizes, stop=("abb",))
    assert (thought, content, chain.gate.closed) == ("c", "abba", False)


@given(SIZES, st.booleans())
def test_a_stop_string_may_be_kept(sizes: list[int], include: bool) -> None:
    assert read("one END two", sizes, stop=("END",), include_stop=include)[1] == ("one END" if include else "one ")


def test_a_stop_string_waits_for_min_tokens() -> None:
    assert read("a.b.c", [1] * 5, stop=(".",), min_tokens=3)[1] == "a.b"
    assert read("a.b.c", [1] * 5, stop=("b.",), min_tokens=3)[1] == "a."


@given(SIZES)
def test_an_answer_may_end_with_its_first_call(sizes: list[int]) -> None:
    _, content, chain = read("Look. [f] [g] Done.", sizes, one_call=True)
    assert (content, chain.gate.closed, chain.gate.stop_reason) == ("Look. ", True, None)


def events_of(arguments: str, cut: int) -> list[Event]:
    pieces = [ToolCallArguments(0, piece) for piece in (arguments[:cut], arguments[cut:]) if piece]
    return [ToolCallStart(0, "f"), *pieces, ToolCallEnd(0)]


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("arguments", "schema", "wanted"),
    [
        ('{"city": "Oslo"}', SCHEMA, ""),
        ('{"city": 7}', SCHEMA, "$.city: 7 is not of type 'string'"),
        ("{}", SCHEMA, "$: 'city' is a required property"),
        ('{"city": Infinity}', SCHEMA, "not JSON: Infinity is not JSON"),
        ('{"a": [1, 2, 1]}', {"properties": {"a": {"uniqueItems": True}}}, "$.a: items are not unique"),
        ('{"a": "x"}', {"properties": {"a": {"pattern": "^(a+)+$"}}}, ""),
        ("{}", {"$ref": "http://127.0.0.1:9/x"}, "can't be checked: "),
        ("{}", {"$ref": "#"}, "can't be checked: "),
    ],
)
def test_arguments_of_strict_tools_are_checked(arguments: str, schema: dict[str, Any], wanted: str) -> None:
    for cut in range(len(arguments)):
        *_, end = OutputFilter(OutputRules(strict={"f": schema})).pass_on(events_of(arguments, cut), 1, ended=False)
        assert isinstance(end, ToolCallEnd)
        assert end.mismatch.startswith(wanted)
        assert bool(end.mismatch) == bool(wanted)
    assert OutputFilter(OutputRules(strict={"g": SCHEMA})).pass_on(events_of("{}", 1), 1, ended=False)[
        -1
    ] == ToolCallEnd(0)


def test_a_schema_that_grows_without_end_is_given_up() -> None:
    bomb: dict[str, Any] = {"$defs": {"a40": {"type": "object"}}, "$ref": "#/$defs/a0"}
    for level in range(40):
        bomb["$defs"][f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level + 1}"}] * 2}
    wide = {"properties": {"x": {"items": {"enum": [str(number) for number in range(50_000)]}}}}
    for schema, arguments in ((bomb, "{}"), (wide, json.dumps({"x": ["y"] * 50_000}))):
        *_, end = OutputFilter(OutputRules(strict={"f": schema})).pass_on(events_of(arguments, 1), 1, ended=False)
        assert "it takes more than" in end.mismatch  # type: ignore[union-attr]


def test_a_failed_call_is_no_first_call() -> None:
    gate = OutputFilter(OutputRules(one_call=True))
    events = [ToolCallStart(0, "f"), ToolCallFailed(0, "[f {"), ToolCallStart(1, "g"), ToolCallEnd(1), TextDelta("x")]
    assert gate.pass_on(events, 1, ended=False) == events[:-1]


@given(st.lists(st.integers(1, 4), max_size=40), st.lists(st.integers(1, 5), min_size=60, max_size=60))
def test_tokens_are_counted_alike_however_many_come_at_once(sizes: list[int], runs: list[int]) -> None:
    text = "(One\ntwo.)It is 4.\nYes."
    bounds = [0, *accumulate(sizes)]
    parts = [(end - start, 1) for start, end in zip(bounds, [*bounds[1:], len(text)], strict=True) if start < len(text)]

    def counted(pieces: list[list[tuple[int, int]]]) -> tuple[int, int, list[Event], str | None]:
        reader = ChainReader(ParserChain(KINDS, ParserContext(), OutputRules(stop=("4.\nY",), min_tokens=2)))
        at, tokens, thoughts, events, stop = 0, 0, 0, list[Event](), None
        for number, piece in enumerate(pieces, 1):
            length = sum(part[0] for part in piece)
            found = reader.read(text[at : at + length], piece, ended=number == len(pieces))
            at, tokens, thoughts = at + length, tokens + found.num_tokens, thoughts + found.num_thoughts
            events += found.events
            if found.closed:
                stop = found.stop_reason
                break
        return tokens, thoughts, events, stop

    joined, left = [], parts
    for run in runs:
        if left:
            joined.append(left[:run])
            left = left[run:]
    assert counted(joined) == counted([[part] for part in parts])
