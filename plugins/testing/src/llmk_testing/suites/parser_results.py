"""Cases of parsers whose results are known: calls that the dialect's writer renders, and thoughts between its markers.

``ParserSpec.writer`` renders the calls, ``ParserSpec.markers`` are around thoughts. Examples that are a
:class:`~llmk_testing.parser_example.ParserExample` know their answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from llmk.api import CallWriter, ParserContext, ParserSpec, RequestError, TextDelta, ToolCallStart, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.parser_example import ParserExample
from llmk_testing.parsers import PLAIN, Answer, Call, Factory
from llmk_testing.suites.parser_answers import answer_cases
from llmk_testing.suites.parser_edits import edit_cases
from llmk_testing.suites.parser_grammar import TOOLS, grammar_cases
from llmk_testing.suites.parser_schemas import schema_cases
from llmk_testing.suites.parser_shapes import shape_cases
from llmk_testing.suites.parser_sizes import size_cases
from llmk_testing.suites.parser_spaces import space_cases
from llmk_testing.suites.parser_thoughts import check_named, thought_cases
from llmk_testing.suites.parser_tools import tool_cases
from llmk_testing.suites.parser_values import value_cases
from llmk_testing.suites.parser_walks import check_walks
from llmk_testing.written_calls import Written, tools, written

BEFORE, AFTER = "First, I look: 3 < 4.\n", "\nThat is all {x: [1]}."
_MOST_HELD = 1024
"""Characters that may be held back at the start of what may be a call."""
_ID = "Zx9kQ2m7p"
"""An id that is no word; some dialects have ids of nine characters."""
_SIZES = (64, 256, 2000)


def result_cases(
    spec: ParserSpec,
    bench: Bench,
    kind: str,
    made: Callable[[ParserContext], Factory],
    answered: Callable[[], Sequence[ParserExample]],
) -> Iterator[Case]:
    """The cases of one parser; ``made`` makes parsers for a context."""

    def case(name: str, run: Callable[..., str | None], *arguments: Any) -> Case:
        return Case(spec.id, kind, name, partial(run, *arguments))

    yield case("examples are answered as they say", check_answers, made, answered)
    yield case("nothing is made up, wherever an example ends", check_made_up, made, answered)
    yield case("what is certain comes out at once", check_at_once, made, answered)
    if kind == "tool_parser":
        yield from answer_cases(spec, made, case)
    if kind == "tool_parser" and spec.writer:
        make, drawn = made(ParserContext(tools=tools())), partial(_drawn, spec, bench)
        yield case("what its writer renders comes back, as the tools' schemas type it", check_written, make, drawn)
        yield case("calls come back without tools in the request", check_without_tools, made(ParserContext()), drawn)
        yield case("long names come back whole, or nothing is lost", check_long_names, made, spec)
        yield case("its writer writes calls as an example has them", check_as_examples, spec, answered)
        yield case("text around calls comes back", check_around, make, drawn)
        yield case("calls before the text's end are whole, wherever it ends", check_cut_calls, make, drawn)
        yield case("text that looks like the start of a call comes back", check_lookalikes, make, spec)
        yield case("text that only starts like a call comes out soon", check_given_up, make, spec)
        yield from edit_cases(spec, made, case)
        yield from value_cases(spec, make, made(ParserContext()), case)
        yield from size_cases(spec, made, case)
        yield from grammar_cases(spec, case)
        yield from shape_cases(spec, made, case)
        yield from tool_cases(spec, made, answered, case)
        yield from schema_cases(spec, case)
        walked = made(ParserContext(tools=TOOLS))
        yield case("what its writer's grammar allows comes back as calls", check_walks, spec, walked, bench.seed)
    yield from space_cases(spec, made, answered, case)
    if kind == "reasoning_parser" and not any(spec.markers):
        yield case("markers around thoughts are in the spec", check_named, made(ParserContext()), answered)
    if kind == "reasoning_parser" and any(spec.markers):
        yield from thought_cases(spec, made, answered, case)


def check_answers(made: Callable[[ParserContext], Factory], answered: Callable[[], Sequence[ParserExample]]) -> str:
    """Reasoning, content and calls, character by character, however the text is cut."""
    examples = answered()
    if not examples:
        raise Skip("no example says what it means: none is a ParserExample")
    for one in examples:
        found = parsers.check_chunking(made(one.context), one.text, rounds=2)
        for what, got, right in (
            ("reasoning", found.reasoning, one.reasoning),
            ("content", found.content, one.content),
            ("calls", [call.name for call in found.calls], [name for name, _ in one.calls]),
            ("ids", [call.id for call in found.calls], list(one.ids) or [None] * len(one.calls)),
        ):
            assert got == right, f"{what} {got!r}, expected {right!r}: {one.text!r}"
        for call, (_, arguments) in zip(found.calls, one.calls, strict=True):
            _check_same(call, arguments, one.text)
    return f"{len(examples)} examples"


def check_made_up(made: Callable[[ParserContext], Factory], answered: Callable[[], Sequence[ParserExample]]) -> str:
    """Wherever an example ends: what comes back was written, in that order, but for white space."""
    examples = answered()
    for one in examples:
        for end in sorted({*range(0, len(one.text), max(1, len(one.text) // 8)), len(one.text)}):
            text = one.text[:end]
            found = parsers.parse(made(one.context), [text])
            for said in (found.reasoning, found.content):
                rest = iter(one.context.prompt_tail + text)
                assert all(character in rest for character in said if not character.isspace()), (
                    f"{said!r} is found in {text!r}"
                )
    return f"{len(examples)} examples"


def check_at_once(made: Callable[[ParserContext], Factory], answered: Callable[[], Sequence[ParserExample]]) -> str:
    """Nothing that more text can't change waits for it: an empty piece returns no event."""
    examples = answered()
    for one in examples:
        for size in (1, len(one.text)):
            parser = made(one.context)()
            for start in range(0, len(one.text), size):
                parsers.pushed(parser, one.text[start : start + size])
                late = parsers.pushed(parser, "")
                assert not late, f"{late} comes out only with the next piece, behind {one.text[: start + size]!r}"
        for end in {len(one.text) // 2, len(one.text) - 1, len(one.text)}:
            text = one.text[:end]
            whole, pieces = (_so_far(made(one.context), cut) for cut in ([text], list(text)))
            assert whole == pieces, f"of {text!r}, in one piece {whole} comes out, and by character {pieces}"
    return f"{len(examples)} examples"


def _so_far(make: Factory, chunks: Sequence[str]) -> tuple[int, int, list[int]]:
    """How many characters of reasoning, of content and of each call came out before the end is known."""
    parser = make()
    answer = parsers.fold(event for chunk in chunks for event in parser.push(chunk))
    return len(answer.reasoning), len(answer.content), [len(call.arguments) for call in answer.calls]


def _drawn(spec: ParserSpec, bench: Bench) -> tuple[CallWriter, list[Written]]:
    writer: CallWriter = load_object(spec.writer)
    marks = not spec.special_tokens  # which no text has in it
    return writer, list(written(writer, 140 if bench.thorough else 28, bench.seed, marks=marks))


def check_written(make: Factory, drawn: Callable[[], tuple[CallWriter, Sequence[Written]]]) -> str:
    """Names and arguments of all calls, and no content, however the text is cut."""
    writer, texts = drawn()
    assert texts, "its writer refuses all calls"
    _check_id(make, writer)
    for one in texts:
        answer = parsers.check_chunking(make, one.text, rounds=1)
        _check_calls(answer, one, one.text)
        assert not answer.content.strip(), f"content {answer.content!r} is found in calls alone: {one.text!r}"
    return f"{len(texts)} texts"


def _check_id(make: Factory, writer: CallWriter) -> None:
    """A dialect that writes ids reads them."""
    text = _rendered(writer, [WrittenCall("say_it", {"text": "x"}, _ID)])
    if _ID in text:
        found = [call.id for call in parsers.parse(make, [text]).calls]
        assert found == [_ID], f"calls with the ids {found} are found in {text!r}"


def check_without_tools(make: Factory, drawn: Callable[[], tuple[CallWriter, Sequence[Written]]]) -> None:
    """Their names come back, and arguments that are JSON: what types they have only tools say."""
    for one in drawn()[1][:12]:
        answer = parsers.check_chunking(make, one.text, rounds=1)
        found, expected = [call.name for call in answer.calls], [call.name for call in one.calls]
        assert found == expected, f"calls of {found}, expected {expected}: {one.text!r}"
        for call, right in zip(answer.calls, one.calls, strict=True):
            parsers.check_json(call)
            keys = json.loads(call.arguments).keys()
            assert keys == right.arguments.keys(), f"arguments {call.arguments}, expected {right.arguments}"


def check_as_examples(spec: ParserSpec, answered: Callable[[], Sequence[ParserExample]]) -> str:
    """To the character, of the examples that say most: with several calls, and with several arguments."""
    writer: CallWriter = load_object(spec.writer)
    given: dict[str, list[tuple[ParserExample, str]]] = {"with calls": [], "with several calls": []}
    for one in answered():
        ids = one.ids or [None] * len(one.calls)
        calls = [WrittenCall(*call, id or "") for call, id in zip(deepcopy(one.calls), ids, strict=True)]
        if calls and all(isinstance(call.arguments, Mapping) for call in calls):
            text = _rendered(writer, calls)
            given["with calls"].append((one, text))
            if len(calls) > 1:
                given["with several calls"].append((one, text))
    if not given["with calls"]:
        raise Skip("no example is a ParserExample with calls")
    for what, pairs in given.items():
        same = any(text and text.strip() in one.text for one, text in pairs)
        assert same or not pairs, f"no example {what} is written as {pairs[0][1]!r}, as its writer writes the first"
    return ", ".join(f"{len(pairs)} {what}" for what, pairs in given.items())


def _rendered(writer: CallWriter, calls: Sequence[WrittenCall]) -> str:
    try:
        return writer.render(calls)
    except (RequestError, ValueError):
        return ""


def check_long_names(made: Callable[[ParserContext], Factory], spec: ParserSpec) -> None:
    """Of a tool and of an argument: a parser may have a limit; a call with a longer name is content."""
    writer: CallWriter = load_object(spec.writer)
    for size in _SIZES:
        name = "n" * size
        for call in (WrittenCall(name, {"text": "x"}, "call_x"), WrittenCall("say_it", {name: "x"}, "call_x")):
            properties = {key: {"type": "string"} for key in call.arguments}
            tool = {"name": call.name, "parameters": {"type": "object", "properties": properties}}
            text = writer.render([call])
            answer = parsers.check_chunking(made(ParserContext(tools=(tool,))), text, rounds=1)
            assert answer.calls or name in answer.content, f"{text!r} is lost: {answer}"
            for found in answer.calls:
                assert found.name == call.name, f"a call of {found.name!r} is found in {text!r}"
                _check_same(found, dict(call.arguments), text)


def check_around(make: Factory, drawn: Callable[[], tuple[CallWriter, Sequence[Written]]]) -> None:
    """Text before calls comes back as it is; of that after them, nothing is made up, and no call is lost."""
    writer, texts = drawn()
    if not writer.trigger:
        raise Skip("its writer has no trigger, so that calls may not follow text")
    for one in texts[:12]:
        whole = BEFORE + one.text
        answer = parsers.check_chunking(make, whole, rounds=1)
        _check_calls(answer, one, whole)
        assert answer.content.strip() == BEFORE.strip(), f"content {answer.content!r}, expected {BEFORE!r}: {whole!r}"
        answer = parsers.parse(make, [*whole, *AFTER])
        _check_calls(answer, one, whole + AFTER)
        rest = answer.content.strip().removeprefix(BEFORE.strip()).strip()
        assert rest in ("", AFTER.strip()), f"content {answer.content!r} of {whole + AFTER!r}"


def check_cut_calls(make: Factory, drawn: Callable[[], tuple[CallWriter, Sequence[Written]]]) -> None:
    """A call of which arguments were read is a call or content; those that are whole are as they would be."""
    for one in [one for one in drawn()[1] if len(one.calls) > 1][:4]:
        for end in range(1, len(one.text), max(1, len(one.text) // 48)):
            text = one.text[:end]
            answer = parsers.parse(make, [text])
            found = [call.name for call in answer.calls]
            expected = [call.name for call in one.calls]
            assert found == expected[: len(found)], f"calls {found}, expected the first of {expected}: {text!r}"
            for right in one.calls:
                started = right.arguments and next(iter(right.arguments)) in text.partition(right.name)[2]
                kept = right.name in found or right.name in answer.content
                assert kept or not started, f"a call of {right.name} is lost at the end of {text!r}: {answer}"
            for call, right in list(zip(answer.calls, one.calls, strict=False))[:-1]:
                _check_same(call, dict(right.arguments), text)


def check_lookalikes(make: Factory, spec: ParserSpec) -> None:
    """A part of the text with which calls start, and that text before something else."""
    writer: CallWriter = load_object(spec.writer)
    trigger, text = writer.trigger, writer.render([WrittenCall("now", {}, "call_now")])
    assert text.startswith(trigger), f"calls are written as {text!r}, which does not start with {trigger!r}"
    for end in range(1, len(trigger)):
        text = f"a {trigger[:end]} b"
        for chunks in ([text], list(text)):
            answer = parsers.parse(make, chunks)
            assert (answer.content, answer.calls) == (text, []), f"{text!r} comes back as {answer}"
    for end in range(1, len(trigger)):
        text = f"a {trigger[:end]}"
        answer = parsers.parse(make, list(text))
        whole = answer.content.rstrip() in (text.rstrip(), "a") and not answer.calls  # what the end cut off may go
        assert whole, f"{text!r} comes back as {answer}"


def check_given_up(make: Factory, spec: ParserSpec) -> str:
    """A parser may wait for the end of a name, and no longer."""
    writer: CallWriter = load_object(spec.writer)
    text, count = writer.render([WrittenCall("say_it", {"text": "x"}, "call_x")]), 0
    for end in range(len(writer.trigger), text.index("say_it") + len("say_it") + 1):
        whole = text[:end] + PLAIN * 30
        parser = make()
        events = [event for at in range(0, len(whole), 7) for event in parser.push(whole[at : at + 7])]
        if not any(isinstance(event, ToolCallStart) for event in events):
            said = sum(len(event.text) for event in events if isinstance(event, TextDelta))
            assert said >= len(whole) - _MOST_HELD, f"{len(whole) - said} characters are held back of {whole[:400]!r}"
            count += 1
    return f"{count} texts"


def _check_calls(answer: Answer, one: Written, text: str) -> None:
    found, expected = [call.name for call in answer.calls], [call.name for call in one.calls]
    assert found == expected, f"calls of {found}, expected {expected}: {text!r}"
    for call, right in zip(answer.calls, one.calls, strict=True):
        _check_same(call, dict(right.arguments), text)
    ids = [call.id for call in answer.calls if call.id]
    assert len(ids) == len(set(ids)), f"calls share an id: {ids} of {text!r}"


def _check_same(call: Call, right: Any, text: str) -> None:
    try:
        found = json.loads(call.arguments)
    except ValueError:
        found = call.arguments
    assert _alike(found, right), f"arguments {call.arguments} of {call.name}, expected {right}: {text!r}"


def _alike(found: Any, right: Any) -> bool:
    """Equal values of equal types, in the same order; a whole number may be written as an integer or not."""
    if isinstance(right, dict):
        return isinstance(found, dict) and [*found] == [*right] and all(_alike(found[k], right[k]) for k in right)
    if isinstance(right, list):
        return isinstance(found, list) and len(found) == len(right) and all(map(_alike, found, right))
    if isinstance(right, bool) or right is None or isinstance(right, str):
        return type(found) is type(right) and bool(found == right)
    return isinstance(found, int | float) and not isinstance(found, bool) and bool(found == right)
