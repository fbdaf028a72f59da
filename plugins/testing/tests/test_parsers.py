"""The conformance suite accepts a parser that keeps the contract, and names what is wrong with each that doesn't."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmk.api import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from llmk_testing import parsers
from llmk_testing.parsers import Answer, Call, fold


class Shout:
    """What stands between exclamation marks is reasoning."""

    def __init__(self) -> None:
        self.thinks = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for number, piece in enumerate(text.split("!")):
            self.thinks ^= number > 0
            if piece:
                events.append(ReasoningDelta(piece) if self.thinks else TextDelta(piece))
        return events

    def finish(self) -> list[Event]:
        return []


class Chunky(Shout):
    """Judges each chunk on its own."""

    def push(self, text: str) -> list[Event]:
        return [TextDelta(text.replace("ab", ""))]


class Raising(Shout):
    def push(self, text: str) -> list[Event]:
        if "\x00" in text:
            raise ValueError("null")
        return super().push(text)


class NeverEnding(Shout):
    def finish(self) -> list[Event]:
        return [ToolCallStart(0, "f")]


class Hoarding(Shout):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []

    def push(self, text: str) -> list[Event]:
        self.text.append(text)
        return []

    def finish(self) -> list[Event]:
        return [TextDelta("".join(self.text))]


class Remembering(Shout):
    """Says everything at once and keeps it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def push(self, text: str) -> list[Event]:
        self.text += text
        return super().push(text)


class Quadratic(Hoarding):
    def push(self, text: str) -> list[Event]:
        super().push(text)
        for piece in self.text:
            assert isinstance(piece, str)
        return []


def test_a_parser_that_keeps_the_contract_passes() -> None:
    parsers.check_parser(Shout, ["a !b! c", "!", "x"])
    assert parsers.check_chunking(Shout, "a!b!c") == Answer(reasoning="b", content="ac")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: parsers.check_chunking(Chunky, "xxabxxab"), "split as"),
        (lambda: parsers.check_hostile(Raising, []), "raised ValueError"),
        (lambda: parsers.parse(NeverEnding, ["a"]), "never end"),
        (lambda: parsers.check_hold_back(Hoarding, parsers.PLAIN), "holds back 65"),
        (lambda: parsers.check_hold_back(Remembering, parsers.PLAIN * 4), "in memory"),
        (lambda: parsers.check_linear(Quadratic, "abcdefgh"), "four times as often"),
    ],
)
def test_each_breach_is_named(check: Callable[[], object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check()


def test_fold() -> None:
    events: list[Event] = [
        ReasoningDelta("r"),
        TextDelta("a"),
        ToolCallStart(0, "f", "id"),
        ToolCallArguments(0, "{"),
        ToolCallArguments(0, "}"),
        ToolCallEnd(0),
        TextDelta("b"),
    ]
    assert fold(events) == Answer("r", "ab", [Call("f", "id", "{}", ended=True)])


@pytest.mark.parametrize(
    "events",
    [
        [ToolCallStart(1, "f")],
        [ToolCallArguments(0, "{}")],
        [ToolCallStart(0, "f"), ToolCallEnd(0), ToolCallArguments(0, "{}")],
        [ToolCallStart(0, "f"), ToolCallEnd(0), ToolCallEnd(0)],
    ],
)
def test_fold_refuses_events_out_of_order(events: list[Event]) -> None:
    with pytest.raises(AssertionError):
        fold(events)
