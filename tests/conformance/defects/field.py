"""Providers that are wrong in ways that bug threads of engines and libraries tell of."""

from __future__ import annotations

from defects import Defect
from llmk.api import Event
from llmk_testing.templates.reasoning_parser.thoughts import CLOSE, OPEN, Thoughts
from llmk_testing.templates.tool_parser.brackets import Brackets

HERE = __name__
COPIED = "the rest of a piece is not copied"


# Tool parsers


class Rests(Brackets):
    """Each call that a piece has is cut off from the rest of it."""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while (end := text.find("]]")) >= 0:
            events += super().push(text[: end + 2])
            text = text[end + 2 :]
        return events + super().push(text)


TOOL_PARSERS = (Defect("rests", "the rest of a piece is copied for each call", Rests, COPIED),)


# Reasoning parsers


class Partitioned(Thoughts):
    """Each marker that a piece has is cut off from the rest of it."""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        found = "]]"
        while found:
            before, found, text = text.partition("]]")
            events += super().push(before + found)
        return events


REASONING_PARSERS = (
    Defect(
        "partitioned",
        "the rest of a piece is copied for each marker",
        {"name": f"{HERE}:Partitioned", "markers": (OPEN, CLOSE)},
        COPIED,
    ),
)
