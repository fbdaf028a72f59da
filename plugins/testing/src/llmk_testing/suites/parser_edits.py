"""Cases of texts that are almost calls: a rendered call of which a piece is left out, doubled, or cut off, and what
stands next to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from llmk.api import CallWriter, ParserContext, ParserSpec, RequestError, TextDelta, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import copies, growing, parsers
from llmk_testing.case import Case, Skip
from llmk_testing.parsers import Answer, Factory
from llmk_testing.written_calls import tools

_PIECE = re.compile(r"<[^<>\s]+>|\w+|\s+|[^\w\s]")
"""Markers, words, white space, and other characters."""
_MANY = 1200
"""Calls in one piece: more than Python functions may call each other."""
_PROBES = 'x1 \n{[<"('
_SAID = "then,"


def edit_cases(spec: ParserSpec, made: Callable[[ParserContext], Factory], case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    make = made(ParserContext(tools=tools()))
    yield case("a call of which a piece is missing or doubled is a call or text", check_pieces, spec, make)
    yield case("a call that the text's end cuts off has no argument in part", check_cut, spec, make)
    yield case("a call behind text that only starts like one comes back", check_behind, spec, make)
    yield case("calls with text between them come back", check_between, spec, make)
    yield case("its writer's trigger starts no other text", check_trigger, spec, make)
    yield case("text that ends where a trigger starts is content", check_beginnings, spec, make)
    yield case("any number of calls in one piece come back", check_many, spec, make)
    yield case("time is linear in calls, their parts and their arguments", check_linear, spec, make)
    yield case("the rest of a piece is not copied for each call in it", check_copies, spec, make)
    yield case("processor time is linear in long values and in runs of one character", check_growing, spec, make)


def check_pieces(spec: ParserSpec, make: Factory) -> str:
    """Each word, mark, white space and line: nothing raises, arguments are JSON, and nothing is lost."""
    count = 0
    for arguments in ({"text": "Oslo", "count": 3}, {"names": ["one", "two"]}, {}):
        if (whole := _rendered(spec, [WrittenCall("say_it", arguments, "call_x")])) is None:
            continue
        for text in _edited(whole):
            answer = _parsed(make, text)
            for call in answer.calls:
                parsers.check_json(call)
                assert call.name, f"a call without a name is found in {text!r}"
            kept = answer.calls or answer.content or spec.special_tokens or "say_it" not in text
            assert kept, f"{text!r} is lost"
            count += 1
    return f"{count} texts"


def _edited(text: str) -> Iterator[str]:
    """With one piece or line left out, doubled, or changed with the next."""
    for pieces in (_PIECE.findall(text), text.splitlines(keepends=True)):
        for at, piece in enumerate(pieces):
            before, after = "".join(pieces[:at]), "".join(pieces[at + 1 :])
            yield before + after
            yield before + piece + piece + after
            yield before + "".join(pieces[at : at + 2][::-1]) + "".join(pieces[at + 2 :])


def _parsed(make: Factory, text: str) -> Answer:
    try:
        whole, pieces = parsers.parse(make, [text]), parsers.parse(make, [*text])
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"raised {error!r} on {text!r}") from error
    assert whole == pieces, f"in one piece {whole}, by character {pieces}: {text!r}"
    return whole


def check_cut(spec: ParserSpec, make: Factory) -> str:
    """Wherever the text ends: clients run what they are given. The call may fail, or be content."""
    count = 0
    for arguments in ({"text": "Oslo is far", "count": 371}, {"names": ["one", "two"], "flag": True}):
        if (whole := _rendered(spec, [WrittenCall("say_it", arguments, "call_x")])) is None:
            continue
        for end in range(1, len(whole) + 1):
            for call in _parsed(make, whole[:end]).calls:
                found = json.loads(call.arguments)
                assert found.items() <= arguments.items(), (
                    f"a call with {found}, of {arguments}, is found in {whole[:end]!r}"
                )
            count += 1
    return f"{count} texts"


def check_behind(spec: ParserSpec, make: Factory) -> str:
    """In most of the ways in which text may go on behind what starts calls: some may be the start of this one."""
    trigger, whole = _triggered(spec)
    texts = [trigger + between + whole for between in ("", "\n", " ", " x\n", "x\n", "x ")]
    found = [text for text in texts if [call.name for call in parsers.check_chunking(make, text).calls] == ["now"]]
    missed = [text for text in texts if text not in found]
    assert len(missed) <= len(texts) // 2, f"the call is text in {missed}"
    return f"{len(found)} of {len(texts)} texts"


def check_between(spec: ParserSpec, make: Factory) -> str:
    """In lines of its own; where it is next to the marks, calls may be text, too, of which nothing is lost."""
    _, whole = _triggered(spec)
    alone, names = _with(make, whole, f"\n{_SAID}\n")
    assert names == ["now"] * 3, f"calls of {names}, expected three of now, with {_SAID!r} between them: {whole!r}"
    assert alone in ("", _SAID * 2), f"content {alone!r}, expected {_SAID!r} twice, between calls: {whole!r}"
    for between in (_SAID, f" {_SAID} ", "less", "[x]<y>{z}:"):
        said, names = _with(make, whole, between)
        kept = said.count(between.strip()) == 2 or not alone
        assert kept, f"content {said!r} with calls of {names}, where {between!r} is between them: {whole!r}"
    return "it comes back" if alone else "it is dropped"


def _with(make: Factory, whole: str, between: str) -> tuple[str, list[str]]:
    """The content of three calls with a text between them, without white space, and the calls' names."""
    answer = parsers.check_chunking(make, between.join([whole] * 3), rounds=1)
    return "".join(answer.content.split()), [call.name for call in answer.calls]


def check_beginnings(spec: ParserSpec, make: Factory) -> str:
    """What was held back, as it could have become a call, is not lost where the text ends."""
    trigger, _ = _triggered(spec)
    texts = [before + trigger[:end] for before in ("", "x", "x\n") for end in range(1, len(trigger))]
    for text in texts:
        answer = parsers.check_chunking(make, text, rounds=1)
        assert (answer.content, answer.calls) == (text, []), f"{text!r} is content, and comes back as {answer}"
    return f"{len(texts)} texts"


def check_trigger(spec: ParserSpec, make: Factory) -> str:
    """Where it appears in content, grammars make a call follow: so text in which the parser finds none must not have
    it, such as ``@caller`` where calls start with ``@call `` and a name."""
    trigger, whole = _triggered(spec)
    following = whole[len(trigger) : len(trigger) + 1]
    texts = [trigger + probe for probe in _PROBES if probe != following]
    said = [text for text in texts if _said(make, text)]
    assert len(said) < len(texts), (
        f"the trigger is {trigger!r}, and text that goes on with anything but {following!r} is no call: the trigger "
        "must be as long as what starts calls"
    )
    return f"{len(said)} of {len(texts)} texts are no call"


def _said(make: Factory, text: str) -> int:
    """How many characters come out as content before the end is known."""
    parser = make()
    events = [event for character in text for event in parser.push(character)]
    return sum(len(event.text) for event in events if isinstance(event, TextDelta))


def check_many(spec: ParserSpec, make: Factory) -> None:
    """As a reader gets them that was busy, or that reads a whole answer."""
    text = _rendered(spec, [WrittenCall("now", {}, f"call_{number}") for number in range(_MANY)])
    if text is None:
        raise Skip("its writer does not write so many calls")
    names = [call.name for call in parsers.parse(make, [text]).calls]
    assert names == ["now"] * _MANY, f"{len(names)} calls of {set(names)}, expected {_MANY} of now"


def check_linear(spec: ParserSpec, make: Factory) -> None:
    """What starts a call over and over, and calls of many and of long arguments."""
    writer: CallWriter = load_object(spec.writer)
    for text in starts(writer):
        parsers.check_linear(make, text, times=max(4, 96 // len(text)))
    for arguments in (
        {"free": {"k": ["v"] * 16}},
        {"text": 'x\\"y ' * 16},
        {"free": {f"k{at}": at for at in range(16)}},
    ):
        if (full := _rendered(spec, [WrittenCall("say_it", arguments, "call_x")])) is not None:
            parsers.check_linear(make, full, times=2)


def starts(writer: CallWriter) -> list[str]:
    """What starts a call, parts of that, and of a call."""
    whole = writer.render([WrittenCall("say_it", {"text": "x"}, "call_x")])
    found = (writer.trigger, writer.trigger[:-1], writer.trigger[:1], whole.partition("x")[2], whole[: len(whole) // 2])
    return [each for each in dict.fromkeys(found) if each.strip()]


def check_copies(spec: ParserSpec, make: Factory) -> str:
    """Calls, calls that fail, and what starts them."""
    writer: CallWriter = load_object(spec.writer)
    whole = writer.render([WrittenCall("say_it", {"text": "x"}, "call_x")])
    failed = [f"{start} " for start in starts(writer)]
    return copies.check_copies(make, [*starts(writer), *failed, whole])


def check_growing(spec: ParserSpec, make: Factory) -> None:
    """Of values that come in small pieces, and of runs in content, behind what starts calls, and in a value."""
    writer: CallWriter = load_object(spec.writer)
    before, _, after = writer.render([WrittenCall("say_it", {"text": "MARK"}, "call_x")]).partition("MARK")
    growing.check_pieces(make, lambda size: before + "ab " * (size // 3) + after, "a text in a call")
    if _rendered(spec, [WrittenCall("say_it", {"free": {"k": ["v"]}}, "call_x")]) is not None:
        growing.check_pieces(make, lambda size: _listed(writer, size), "a list in a call")
    growing.check_runs(make, "", (*growing.RUNS, *starts(writer)))
    growing.check_runs(make, writer.trigger, growing.PLAIN_RUNS)
    growing.check_runs(make, before, growing.PLAIN_RUNS)


def _listed(writer: CallWriter, size: int) -> str:
    return writer.render([WrittenCall("say_it", {"free": {"k": ["v"] * (size // 5)}}, "call_x")])


def _triggered(spec: ParserSpec) -> tuple[str, str]:
    """The trigger, and a call."""
    writer: CallWriter = load_object(spec.writer)
    if not writer.trigger:
        raise Skip("its writer has no trigger, so that calls may not follow text")
    return writer.trigger, writer.render([WrittenCall("now", {}, "call_now")])


def _rendered(spec: ParserSpec, calls: Sequence[WrittenCall]) -> str | None:
    writer: CallWriter = load_object(spec.writer)
    try:
        return writer.render(calls)
    except (RequestError, ValueError):
        return None
