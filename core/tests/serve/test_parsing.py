"""What surrounds a block of thinking is part of nothing, whatever pieces it comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmk.api import Event, ReasoningDelta, TextDelta, ToolCallEnd, ToolCallStart
from llmk.serve.parsing import Trim

THINKING = [ReasoningDelta("\n  I add.\n\n  It is 4.\n"), TextDelta("\n\nIt is 4.\n")]


def fold(events: list[Event]) -> tuple[str, str]:
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    return thought, "".join(event.text for event in events if isinstance(event, TextDelta))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_blank_space_around_thinking_goes_whatever_the_pieces(sizes: list[int]) -> None:
    trim, kept = Trim(), []
    for event in THINKING:
        text, at = event.text, 0
        for size in sizes * len(text):
            if at < len(text):
                kept += trim([type(event)(text[at : at + size])])
                at += size
    assert fold(kept) == ("I add.\n\n  It is 4.", "It is 4.\n")


def test_an_answer_without_thinking_passes_as_it_is() -> None:
    events: list[Event] = [TextDelta("\n\n  code:\n"), ToolCallStart(0, "f"), ToolCallEnd(0), TextDelta("\n")]
    assert list(Trim()(events)) == events


@pytest.mark.parametrize("blank", ["", "\n", "\n\n \n"])
def test_a_blank_thought_is_none(blank: str) -> None:
    assert list(Trim()([ReasoningDelta(blank), TextDelta("\n\n"), TextDelta("Yes.")])) == [TextDelta("Yes.")]


def test_a_second_thought_is_trimmed_too() -> None:
    events: list[Event] = [
        ReasoningDelta("\na\n"), ToolCallStart(0, "f"), ToolCallEnd(0), ReasoningDelta("\n"), ReasoningDelta("b\n"),
    ]  # fmt: skip
    kept = list(Trim()(events))
    assert kept == [ReasoningDelta("a"), ToolCallStart(0, "f"), ToolCallEnd(0), ReasoningDelta("b")]
