"""What holds for any text, any arguments and any way to cut them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from time import process_time
from typing import Any

import pytest
from dialects import SPECS, examples, make
from hypothesis import given, settings
from hypothesis import strategies as st

from llmk.api import ParserContext
from llmk_parsers.json_value import JsonValue, StringDecoder
from llmk_testing.parsers import Parser, check_linear, check_parser, hostile_texts, parse

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>\n{", "<", "</t", "<|python_tag|>", ";"]
JUNK = ["\n", " ", "a", "é", "\x00", "{", "}", "[", "]", '"', "\\", "\\u", "\\ud83d", "\\ude00", "d8", ":", ",", "null"]
MEMBERS = ['{"name": "f", ', '"name": "g"', '"arguments": ', '"parameters": {', '{"x": "<tool_call>"}', "}}"]
FRAGMENTS = [*MARKERS, *JUNK, *MEMBERS, '{"name": "f", "arguments": {"a": 1}}', '"arguments": "{\\"a\\": ']
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_LITERALS = [
    "9" * 5000,
    "-1e999",
    "1" * 30,
    "0.1e-7",
    "NaN",
    "-Infinity",
    "True",
    "None",
    "nil",
    "[" * 200,
    '{"a":' * 120,
]
_CHARACTERS = ["\U0001f600", "\u202e", "\ufeff", "İ", "\ud800", "\r\n", "\t", "'", "\\'", "(", ")", "=", "}" * 9]
VALUES = [*_LITERALS, *_CHARACTERS, "a=1, ", "&quot;", "<![CDATA[", "]]>"]
"""What a value may be, or contain."""
_MEMBERS = {
    "city": {"type": "string"},
    "q": {"type": ["integer", "null"]},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "t": {"type": "array", "items": {"type": "object"}},
    "text": {"enum": ["x", 1, None]},
    "a": {"type": "boolean"},
    "days": {"$ref": "#/properties/t"},
    "b": {"anyOf": [{"type": "object"}, {"type": "string"}]},
    "e": {"type": "object"},
}
TOOLS = [
    {"name": called, "parameters": {"type": "object", "properties": _MEMBERS, "required": ["q"]}}
    for called in ("find", "weather", "say", "f", "a", "b", "get_weather")
]
CONTEXTS = [
    ParserContext(),
    ParserContext(tools=TOOLS),
    ParserContext(tools=TOOLS, prompt_tail="<think>\n", template_options={"tool_call_format": "json"}),
    ParserContext(
        tools=TOOLS, thinking=True, template_options={"tool_call_format": "xml_typed", "reasoning_effort": "high"}
    ),
    ParserContext(tools=[{"name": "now"}], thinking=False, template_options={"force_nonempty_content": True}),
]
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)
_PIECE = re.compile(r"<[^<>\s]+>|[\w]+|\s+|.", re.DOTALL)
PROSE = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=12)


def cut(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=len(text))))
    return [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@cache
def fragments(name: str) -> list[str]:
    """Pieces of the dialect's own markers and text, and of others."""
    own = {piece for example in examples(name) for piece in _PIECE.findall(example)}
    return [*sorted(own), *examples(name), *FRAGMENTS]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_chunking_gives_the_same_answer(name: str, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(fragments(name)) | st.text(max_size=3), max_size=25))
    text = "".join(pieces)
    whole = parse(lambda: make(name), [text])
    assert parse(lambda: make(name), pieces) == whole
    assert parse(lambda: make(name), cut(text, data)) == whole


def fuzz(name: str, count: int) -> None:
    """Fuzzed texts, in one piece and in others, with each context in turn."""
    generator = random.Random(name)
    for number, text in enumerate(fuzzed(name, count, generator)):
        context = CONTEXTS[number % len(CONTEXTS)]
        at = generator.randint(0, len(text))
        cuts = sorted(generator.choices(range(len(text) + 1), k=4))
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        whole = parse(lambda context=context: make(name, context), [text])
        for chunks in ([text[:at], *text[at:]], pieces):
            assert parse(lambda context=context: make(name, context), chunks) == whole, (context, chunks)
        for call in whole.calls:
            strict(call.arguments)


def fuzzed(name: str, count: int, generator: random.Random) -> Iterator[str]:
    """``count`` texts: examples changed, truncated, doubled and spliced, and sequences of markers, of the dialect or
    not, with what values may be made of."""
    changed = hostile_texts([*examples(name), *fragments(name)[:8]], count, seed=generator.randrange(1 << 30))
    pieces = [*fragments(name), *VALUES]
    for number, text in enumerate(changed):
        if number % 4:
            yield text
            continue
        drawn = generator.choices(pieces, k=generator.randint(1, 24))
        yield "".join(piece * (generator.choice((1, 1, 2, 16)) if len(piece) < 16 else 1) for piece in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_fuzzed_text_raises_nothing(name: str) -> None:
    fuzz(name, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_some_fuzzed_text_raises_nothing(name: str) -> None:
    fuzz(name, 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_conforms(name: str) -> None:
    check_parser(lambda: make(name), examples(name))


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    arguments=st.lists(ARGUMENTS, min_size=1, max_size=3),
    prose=PROSE,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    in_string=st.booleans(),
    name_last=st.booleans(),
    key=st.sampled_from(["arguments", "parameters"]),
)
def test_arguments_are_what_the_model_wrote(
    data: st.DataObject,
    arguments: list[dict[str, Any]],
    prose: str,
    ascii_only: bool,
    indent: int | None,
    in_string: bool,
    name_last: bool,
    key: str,
) -> None:
    text = prose
    for number, value in enumerate(arguments):
        written = json.dumps(value, ensure_ascii=ascii_only) if in_string else value
        members = [("name", f"f{number}"), (key, written)]
        body = json.dumps(dict(members[:: -1 if name_last else 1]), ensure_ascii=ascii_only, indent=indent)
        text += f"<tool_call>\n{body}\n</tool_call>\n"
    answer = parse(lambda: make("tools/hermes"), cut(text, data))
    assert [call.name for call in answer.calls] == [f"f{number}" for number in range(len(arguments))]
    assert [json.loads(call.arguments) for call in answer.calls] == arguments
    assert answer.content == (prose if prose.strip() else "")


@settings(max_examples=100, deadline=None)
@given(data=st.data(), thought=PROSE, said=PROSE, opened=st.booleans())
def test_no_text_is_lost(data: st.DataObject, thought: str, said: str, opened: bool) -> None:
    context = ParserContext(prompt_tail="<think>\n" if opened else "")
    text = f"{'' if opened else '<think>'}{thought}</think>{said}"
    answer = parse(lambda: make("reasoning/qwen3", context), cut(text, data))
    assert answer.reasoning == (thought if thought.strip() else "")
    assert answer.content == said


@settings(max_examples=150, deadline=None)
@given(data=st.data(), text=st.text(), ascii_only=st.booleans())
def test_a_decoded_string_is_what_was_encoded(data: st.DataObject, text: str, ascii_only: bool) -> None:
    decoder = StringDecoder()
    encoded = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    assert "".join(map(decoder.feed, cut(encoded, data))) + decoder.finish() == text


@settings(max_examples=150, deadline=None)
@given(data=st.data(), value=JSON)
def test_a_value_ends_where_json_says(data: st.DataObject, value: Any) -> None:
    text = json.dumps(value)
    scan, size = JsonValue(), 0
    for chunk in cut(text + ", <", data):
        size += scan.feed(chunk, 0)
    assert (size, scan.complete, scan.stopped) == (len(text), True, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_hostile_repetition_takes_linear_time(name: str) -> None:
    openings = ['<tool_call>{"name": "f", "arguments": {"a": ["', '<tool_call>{"a": "', "<tool_call>{<tool_call>"]
    for text in [*fragments(name), *openings, "\\u12"]:
        check_linear(lambda: make(name), text)


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [" ", "[", '"', '"\\', "\\u00e9", "x", '{"a": 1}, ', "<"])
@pytest.mark.parametrize("name", SPECS)
def test_hostile_inside_takes_linear_time(name: str, repeated: str) -> None:
    cut_off = [example[: len(example) * part // 4] for example in examples(name) for part in (1, 2, 3)]
    for before in ['<tool_call>{"name": "f", "arguments": ', '<tool_call>{"arguments": ', "<tool_call>", *cut_off]:
        check_linear(lambda opening=before: pushed(name, opening), repeated)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_long_runs_take_linear_time(name: str) -> None:
    """Counted lines don't show what a line costs, so this measures: eight times as much text may take three times as
    long per character, in the best of a few tries."""
    runs = [" ", "<", "[", '"', "\\", "9", "é ", '{"a": ', *fragments(name)[:2]]
    openings = ["", *(example[: len(example) // 2] for example in examples(name))]
    for opening in openings:
        for run in runs:
            short, long = (opening + run * (size // len(run)) for size in (12_500, 100_000))
            ratios = (cpu_time(name, long) / cpu_time(name, short) for _ in range(4))
            assert any(ratio < 24 for ratio in ratios), (opening, run)


def cpu_time(name: str, text: str) -> float:
    """Seconds of CPU time to parse ``text`` in pieces of tokens' size, and in one."""
    before = process_time()
    for chunks in ([text[at : at + 16] for at in range(0, len(text), 16)], [text]):
        parser: Parser = make(name, CONTEXTS[1])
        for chunk in chunks:
            parser.push(chunk)
        parser.finish()
    return process_time() - before


def pushed(name: str, text: str) -> Parser:
    parser: Parser = make(name)
    parser.push(text)
    return parser


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse, parse_int=float)  # of any size


@pytest.mark.parametrize("text", ["1d5", "0.d80", "-d", "1es5", "1e5d"])
def test_letters_in_a_number_are_not_digits_or_signs(text: str) -> None:
    scan = JsonValue()
    size = scan.feed(text + ",", 0)
    assert scan.stopped or size < len(text)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), value=JSON, change=st.sampled_from([*JUNK, "NaN", "Infinity", "1e400", "0", "-", ".", "e", "+"]))
def test_a_value_is_json_where_python_says(data: st.DataObject, value: Any, change: str) -> None:
    text = json.dumps(value)
    start = data.draw(st.integers(0, len(text)))
    text = (text[:start] + change + text[start + data.draw(st.integers(0, 2)) :]).strip()
    scan, size = JsonValue(), 0
    for chunk in cut(text + ",", data):
        size += scan.feed(chunk, 0) if not (scan.complete or scan.stopped) else 0
    try:
        strict(text)
    except ValueError:
        assert not scan.complete or size < len(text)
    else:
        assert (scan.complete, size) == (True, len(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SPECS if name.startswith("tools/")])
@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.sampled_from([*FRAGMENTS, '<tool_call>{"name": "f", "arguments": {']), max_size=15))
def test_calls_in_whole_answers_have_json(name: str, pieces: list[str]) -> None:
    for call in parse(lambda: make(name), pieces).calls:
        strict(call.arguments)
