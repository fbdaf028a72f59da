"""Cases of thoughts between the markers of a dialect, as the parser's spec has them, and of prompts that start or end
thoughts, or speak of the markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmk.api import ParserContext, ParserSpec
from llmk_testing import copies, growing, parsers
from llmk_testing.case import Case, Skip
from llmk_testing.odd_texts import ODD
from llmk_testing.parser_example import ParserExample
from llmk_testing.parsers import PLAIN, Answer, Factory

THOUGHTS = (
    "Hm.",
    "a < b, {x: [1]} and </b>\n\nsecond paragraph: é😀",
    'I could call {"name": "f", "arguments": {}} or f(x="y").',
    "x" * 300,
    "<",
    ODD,
)
ANSWERS = ("It is 4.", "a <b> c\n\n{x: [1]}", "", "<", "y" * 300, ODD)
_SWITCHES = (None, True, False)
_SPACES = ("\n", "", " ", "\n\n", " \n \n\t\n ")
_TOOLS = ({"name": "f", "description": "", "parameters": {"type": "object", "properties": {"x": {}}}},)
_TURN = "<|turn|>assistant\n"


def thought_cases(
    spec: ParserSpec,
    made: Callable[[ParserContext], Factory],
    answered: Callable[[], Sequence[ParserExample]],
    case: Callable[..., Case],
) -> Iterator[Case]:
    """The cases of one dialect that has markers."""
    markers = spec.markers
    yield case("its spec has both markers", check_both, markers)
    for what, thinking in (("", None), (", with thinking on", True), (", with thinking off", False)):
        make = made(ParserContext(thinking=thinking))
        yield case(f"thoughts and answers come back{what}", check_thoughts, make, markers)
    name = "examples say what becomes of white space around thoughts"
    yield case(name, check_space_is_said, markers, answered)
    yield case("thoughts and answers come out soon, and aren't kept", check_soon, made, markers)
    yield case("an unfinished thought comes back", check_unfinished, made(ParserContext()), markers)
    yield case("a thought that the prompt started comes back", check_started, made, markers)
    yield case("an answer comes back where the prompt ended the thought", check_ended, made, markers)
    yield case("markers that the prompt speaks of start and end no thought", check_mentioned, made, markers)
    yield case("what differs from a marker is text", check_lookalikes, made(ParserContext()), markers)
    yield case("time is linear in markers and their parts", check_linear, made(ParserContext()), markers)
    yield case("the rest of a piece is not copied for each marker in it", check_copies, made(ParserContext()), markers)
    yield case("processor time is linear in runs of one character", check_growing, made(ParserContext()), markers)


def check_both(markers: tuple[str, str]) -> None:
    """A grammar can start behind a block only if it knows both."""
    assert all(markers), f"the markers are {markers}: name both, or none"


def check_named(make: Factory, answered: Callable[[], Sequence[ParserExample]]) -> str:
    """If the same two texts are around the thought of each example, and make any other text a thought, they are the
    dialect's markers."""
    found = set()
    for one in answered():
        opens, thought, rest = one.text.partition(one.reasoning or "\0")
        if thought and not one.context.prompt_tail:
            found.add((opens.strip(), rest.removesuffix(one.content).strip()))
    if len(found) == 1 and all(*found):
        ((opens, closes),) = found
        named = _is_between(make, opens, closes)
        assert not named, f"{opens!r} and {closes!r} are around thoughts, and the spec's markers are empty"
    return f"{len(found)} pairs of texts are around thoughts"


def _is_between(make: Factory, opens: str, closes: str) -> bool:
    """Whether thoughts come back that are between two texts, and none where these are missing."""
    pairs = [(thought, answer) for thought in THOUGHTS[:3] for answer in ANSWERS[:2]]
    found = [parsers.parse(make, [f"{opens}{thought}{closes}{answer}"]) for thought, answer in pairs]
    right = [(thought.strip(), answer.strip()) for thought, answer in pairs]
    same = [(one.reasoning.strip(), one.content.strip()) for one in found] == right
    return same and not parsers.parse(make, [ANSWERS[0]]).reasoning


def check_thoughts(make: Factory, markers: tuple[str, str]) -> None:
    """Between the markers is reasoning, behind them the answer; white space around them may go."""
    opens, closes = markers
    for thought in (*THOUGHTS, closes[:-1], closes[:1] + " " + closes[1:]):
        for answer in (*ANSWERS, opens[:-1] + "."):
            text = f"{opens}{thought}{closes}{answer}"
            found = parsers.check_chunking(make, text, rounds=1)
            _check_thought(found, thought, answer, text)


def check_soon(made: Callable[[ParserContext], Factory], markers: tuple[str, str]) -> None:
    """Behind each marker, and where the prompt started the thought."""
    opens, closes = markers
    started = ParserContext(thinking=True, prompt_tail=f"<|assistant|>\n{opens}\n")
    for context, before in ((ParserContext(), opens), (ParserContext(), f"{opens}Hm.{closes}"), (started, "")):
        parsers.check_hold_back(made(context), PLAIN * 4, before=before)


def check_space_is_said(markers: tuple[str, str], answered: Callable[[], Sequence[ParserExample]]) -> str:
    """Dialects differ in it, so that only examples can say what is right: at both ends of a thought and behind it."""
    (opens, closes), texts = map(re.escape, markers), [one.text for one in answered()]
    places = {
        f"behind {markers[0]!r}": rf"{opens}\s+\S",
        f"before {markers[1]!r}": rf"\S\s+{closes}",
        f"behind {markers[1]!r}": rf"{closes}\s+\S",
    }
    for where, pattern in places.items():
        if not any(re.search(pattern, text) for text in texts):
            raise Skip(f"no example has white space {where}: add one, which says what becomes of it")
    return f"{len(texts)} examples"


def check_unfinished(make: Factory, markers: tuple[str, str]) -> None:
    """Without its end, all is thought."""
    for thought in THOUGHTS:
        for held in ("", markers[1][: len(markers[1]) // 2]):
            text = f"{markers[0]}{thought}{held}"
            _check_thought(parsers.check_chunking(make, text, rounds=1), thought + held, "", text)


def check_started(made: Callable[[ParserContext], Factory], markers: tuple[str, str]) -> None:
    """Templates may end the prompt with the opening marker, with any white space behind it, and with any text, also of
    earlier thoughts, before it."""
    opens, closes = markers
    tails = [f"{_TURN}{opens}{space}" for space in _SPACES]
    tails += [f"{opens}\n", f"{opens}\na\n{closes}\nb<|turn|>user\nWhat does {closes} mean?{_TURN}{opens}\n"]
    for tail in tails:
        for thinking, tools in ((True, _TOOLS), *((switch, ()) for switch in _SWITCHES)):
            make = made(_asked(thinking, tail, tools))
            for thought in THOUGHTS[: None if tail is tails[0] else 1]:
                for answer in ANSWERS[: None if tail is tails[0] else 1]:
                    text = f"{thought}{closes}{answer}"
                    found = parsers.check_chunking(make, text, rounds=1)
                    _check_thought(found, thought, answer, f"{text} behind {tail}")


def check_ended(made: Callable[[ParserContext], Factory], markers: tuple[str, str]) -> None:
    """Templates may write an empty thought, no matter what the request says."""
    opens, closes = markers
    for thought, space in (("\n\n", "\n\n"), ("", ""), ("\n", "\n"), ("Hm.", " "), ("a\n", "\n")):
        for thinking in _SWITCHES:
            make = made(_asked(thinking, f"{_TURN}{opens}{thought}{closes}{space}"))
            for answer in ANSWERS:
                _check_thought(parsers.check_chunking(make, answer, rounds=1), "", answer, answer)


def _asked(thinking: bool | None, tail: str, tools: Sequence[Mapping[str, Any]] = ()) -> ParserContext:
    """A request whose switch the template may read, too."""
    options = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
    return ParserContext(thinking=thinking, prompt_tail=tail, template_options=options, tools=tools)


def check_mentioned(made: Callable[[ParserContext], Factory], markers: tuple[str, str]) -> None:
    """Only what the prompt ends with counts: the same answer as behind a prompt without markers."""
    opens, closes = markers
    said = (opens, f"{opens}\n", closes, f"{opens}a{closes}b {opens}", f"{closes}{opens}", f"what is {opens}?")
    for thinking in _SWITCHES:
        plain = made(ParserContext(thinking=thinking, prompt_tail=f"<|turn|>user\nHi.{_TURN}"))
        for text in ("It is 4.", f"{opens}Hm.{closes}It is 4.", f"Hm.{closes}It is 4."):
            right = parsers.parse(plain, [text])
            for tail in (f"<|turn|>user\n{each}{_TURN}" for each in said):
                found = parsers.parse(made(ParserContext(thinking=thinking, prompt_tail=tail)), [text])
                assert found == right, f"{text!r} behind {tail!r} comes back as {found}, and without the marker {right}"


def check_lookalikes(make: Factory, markers: tuple[str, str]) -> None:
    """In other case, with a character more or less, and inside of a longer word."""
    opens, closes = markers
    for thought, answer in zip(_near(closes), _near(opens), strict=True):
        text = f"{opens}Hm {thought} m{closes}It {answer} is"
        _check_thought(parsers.check_chunking(make, text, rounds=1), f"Hm {thought} m", f"It {answer} is", text)


def _near(marker: str) -> list[str]:
    middle = len(marker) // 2
    found = [marker.swapcase(), marker[:middle] + marker[middle + 1 :], f"{marker[:middle]} {marker[middle:]}"]
    found += [marker[1:], marker[:-1], f"{marker[:-1]}x{marker[-1:]}", marker[:-1] + marker[:-1], "&lt;" + marker[1:]]
    return [one if one != marker else "" for one in found]


def check_linear(make: Factory, markers: tuple[str, str]) -> None:
    """Thousands of blocks may come in one piece, and what only looks like markers."""
    opens, closes = markers
    for text in _pieces(markers):
        parsers.check_linear(make, text, times=max(4, 128 // len(text)))
        whole = text * 1500
        found, pieces = (parsers.parse(make, cut) for cut in ([whole], [*whole]))
        assert found == pieces, f"1500 times {text!r}: {found} in one piece, and by character {pieces}"
        twice = parsers.parse(make, [text * 2]).reasoning
        same = found.reasoning == text[len(opens) :].partition(closes)[0] * 1500
        assert same or twice != "éé", f"two blocks are read, and not 1500: {text!r}"
        for letter in "éü":
            kept = (found.reasoning + found.content).count(letter)
            assert kept == whole.count(letter), f"of 1500 times {text!r}, {kept} of {letter!r} come back"


def check_copies(make: Factory, markers: tuple[str, str]) -> str:
    """Of blocks, markers, and what only looks like them."""
    return copies.check_copies(make, _pieces(markers))


def check_growing(make: Factory, markers: tuple[str, str]) -> None:
    """In an answer, in a thought, and behind one."""
    opens, closes = markers
    for before in ("", opens, opens + "Hm." + closes):
        growing.check_runs(make, before, (*growing.RUNS, *_pieces(markers)))


def _pieces(markers: tuple[str, str]) -> tuple[str, ...]:
    """A block, markers, and parts of them."""
    opens, closes = markers
    return (f"{opens}é{closes}ü", opens, closes, opens[:-1], closes[:-1], opens[:1], opens + closes[:-1])


def _check_thought(found: Answer, thought: str, answer: str, text: str) -> None:
    same = found.reasoning.strip() == thought.strip() and found.content.strip() == answer.strip() and not found.calls
    assert same, f"{text!r} comes back as {found}"
