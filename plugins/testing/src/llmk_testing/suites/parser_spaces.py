"""Cases of white space: what a parser may drop around thoughts, and that it holds none back which it will keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from llmk.api import CallWriter, ParserContext, ParserSpec, ReasoningDelta, TextDelta, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing import parsers
from llmk_testing.case import Case
from llmk_testing.parser_example import ParserExample
from llmk_testing.parsers import Factory

BLANKS = (" ", "\t", "  ", "\n ", " \n", "\t\n ")
BREAKS = ("\n", "\n\n", "\n\n\n")
_WORD, _NEXT = "So", "It is 4."


def space_cases(
    spec: ParserSpec,
    made: Callable[[ParserContext], Factory],
    answered: Callable[[], Sequence[ParserExample]],
    case: Callable[..., Case],
) -> Iterator[Case]:
    """The cases of one dialect, whose thoughts are between markers or whose calls a writer writes."""
    make = made(ParserContext())
    yield case("white space that is kept comes out at once", check_held, spec, make, answered)
    if any(spec.markers):
        name = "of white space around thoughts, line breaks go or all does, unless an example says otherwise"
        yield case(name, check_dropped, spec.markers, make, answered)
        name = "behind a thought that the prompt ended, white space is what it is behind one of the model's"
        yield case(name, check_behind_prompt, spec.markers, made)


def check_held(spec: ParserSpec, make: Factory, answered: Callable[[], Sequence[ParserExample]]) -> str:
    """A parser that drops white space before a marker may wait for what follows it; others have no reason to."""
    opens, closes = spec.markers
    known = [one.text for one in answered()] if spec.examples else []
    starts = [text for text in (opens, closes, _call(spec), *known) if text]
    count = 0
    for before in ("", opens) if opens else ("",):
        for space in (*BLANKS, *BREAKS):
            text = before + _WORD + space
            follow = [f"{text}{after}" for after in (*starts, _NEXT, "")]
            kept = all(_WORD + space in _said(make, [whole]) for whole in follow)
            if kept and not any(start.startswith(space[-1]) for start in starts):
                for chunks in ([text], [*text], [before + _WORD, space]):
                    out = _said(make, [chunk for chunk in chunks if chunk], finish=False)
                    assert out.endswith(_WORD + space), f"{space!r} is held back behind {before + _WORD!r}: {out!r}"
                count += 1
    return f"{count} texts"


def check_dropped(markers: tuple[str, str], make: Factory, answered: Callable[[], Sequence[ParserExample]]) -> str:
    """Templates write line breaks around thoughts, so these may go, or all white space; a space or a tab is the
    model's unless an example has one in that place."""
    opens, closes = markers
    start, end = map(re.escape, markers)
    places = {
        f"behind {opens!r}": (f"{opens}%sHm.{closes}It is 4.", rf"{start}\s*[ \t].*{end}"),
        f"before {closes!r}": (f"{opens}Hm.%s{closes}It is 4.", rf"{start}.*[ \t]\s*{end}"),
        f"behind {closes!r}": (f"{opens}Hm.{closes}%sIt is 4.", rf"{start}((?!{end}).)*{end}\s*[ \t]"),
    }
    for where, (form, shown) in places.items():
        if any(re.search(shown, one.text, re.DOTALL) for one in answered()):
            continue
        left = {space: _left(make, form, space) for space in (*BLANKS, *BREAKS)}
        dropped = [space for space in BLANKS if _blanks(left[space]) < _blanks(space)]
        whole = not any(left.values())
        assert whole or not dropped, (
            f"{where}, {dropped[0]!r} becomes {left[dropped[0]]!r}, which no example says, and not all white space goes"
        )
    return f"{len(places)} places"


def check_behind_prompt(markers: tuple[str, str], made: Callable[[ParserContext], Factory]) -> str:
    """What the prompt's end has of it is not the answer's: an answer comes back whole, or as behind a block that the
    model itself wrote with that end."""
    opens, closes = markers
    plain, count = made(ParserContext()), 0
    for space in ("", "\n", "\n\n", " "):
        ended = f"{opens}\n{closes}{space}"
        make = made(ParserContext(prompt_tail=f"<|turn|>assistant\n{ended}"))
        for answer in (*(each + _NEXT for each in (*BREAKS, *BLANKS)), _NEXT, f"\n\n{_NEXT}\n\nSo."):
            found = parsers.check_chunking(make, answer, rounds=1).content
            right = (answer, parsers.parse(plain, [ended + answer]).content)
            assert found in right, f"{answer!r} behind the prompt's {ended!r} becomes {found!r}, expected {right[1]!r}"
            count += 1
    return f"{count} answers"


def _call(spec: ParserSpec) -> str:
    if not spec.writer:
        return ""
    writer: CallWriter = load_object(spec.writer)
    return writer.render([WrittenCall("now", {}, "call_now")])


def _said(make: Factory, chunks: Sequence[str], *, finish: bool = True) -> str:
    """Reasoning and content, in their order."""
    parser = make()
    events = [event for chunk in chunks for event in parser.push(chunk)]
    events += parser.finish() if finish else ()
    return "".join(event.text for event in events if isinstance(event, TextDelta | ReasoningDelta))


def _left(make: Factory, form: str, space: str) -> str:
    """What is left of white space: of all that is said, without the words."""
    answer = parsers.parse(make, [form % space])
    return (answer.reasoning + answer.content).replace("Hm.", "").replace(_NEXT, "")


def _blanks(text: str) -> int:
    return sum(text.count(each) for each in " \t")
