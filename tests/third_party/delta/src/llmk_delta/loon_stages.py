"""The dialect of LLaVA-CoT and the models made like it, as an incremental state machine.

::

    <SUMMARY> What to do. </SUMMARY>

    <CAPTION> What is there. </CAPTION>

    <REASONING> Step by step. </REASONING>

    <CONCLUSION> The answer. </CONCLUSION>

The first three stages are reasoning, and so is the white space between them. A stage that isn't closed ends where
another one starts, and a stage that another one's tag closes ends, too. Text behind a closed stage is content, also
without the last tag. White space behind a tag that opens is dropped; tags that close nothing are text.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from llmk.api import Event, ParserContext, ReasoningDelta, TextDelta

STAGES = ("SUMMARY", "CAPTION", "REASONING")
OPENS = tuple(f"<{stage}>" for stage in STAGES)
CLOSES = tuple(f"</{stage}>" for stage in STAGES)
ANSWER, ANSWER_CLOSE = "<CONCLUSION>", "</CONCLUSION>"
BLANKS = " \t\r\n"
BLANK = re.compile(r"[ \t\r\n]*")


class Place(Enum):
    """Where in an answer the text is."""

    OUTSIDE = auto()
    """Outside of all tags, in content."""
    STAGE = auto()
    BETWEEN = auto()
    """Behind a stage, where white space doesn't say yet whether another one follows."""
    ANSWER = auto()


TAGS = {
    Place.OUTSIDE: (*OPENS, ANSWER),
    Place.STAGE: (*OPENS, *CLOSES, ANSWER),
    Place.BETWEEN: (*OPENS, *CLOSES, ANSWER),
    Place.ANSWER: (*OPENS, ANSWER_CLOSE),
}
"""The tags that count in each place."""
PATTERNS = {place: re.compile("|".join(tags)) for place, tags in TAGS.items()}
LEADS_TO = (
    dict.fromkeys(OPENS, Place.STAGE)
    | dict.fromkeys(CLOSES, Place.BETWEEN)
    | {ANSWER: Place.ANSWER, ANSWER_CLOSE: Place.OUTSIDE}
)
LONGEST_TAG = max(map(len, LEADS_TO))


class Stages:
    """Follows ``llmk.api.ReasoningParser``. Text is passed on at once, except a tail that may become a tag."""

    def __init__(self, context: ParserContext) -> None:
        opened = context.prompt_tail.rstrip(BLANKS).endswith(OPENS)
        self._place = Place.STAGE if opened else Place.OUTSIDE
        self._blank = opened
        """Whether white space is dropped, as behind a tag that opens."""
        self._held = ""

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns the events that are now certain."""
        text, at = self._held + text, 0
        events: list[Event] = []
        while True:
            at = self._skip(text, at, events)
            tag = PATTERNS[self._place].search(text, at)
            if self._place is Place.BETWEEN and self._goes_on(text, at, tag):
                self._place = Place.OUTSIDE
                continue
            if tag is None:
                break
            events += self._events(text[at : tag.start()])
            at = tag.end()
            self._place = LEADS_TO[tag[0]]
            self._blank = tag[0] in OPENS or tag[0] == ANSWER
        end = len(text) - self._tail(text, at)
        self._held = text[end:]
        return events + self._events(text[at:end])

    def finish(self) -> list[Event]:
        """At the end of the text: what was held back is no tag."""
        held, self._held = self._held, ""
        if held and self._place is Place.BETWEEN:
            self._place = Place.OUTSIDE
        return self._events(held)

    def _skip(self, text: str, at: int, events: list[Event]) -> int:
        """Where the text goes on behind white space that is dropped, or that separates stages."""
        if not self._blank and self._place is not Place.BETWEEN:
            return at
        blank = BLANK.match(text, at)
        assert blank is not None
        if self._place is Place.BETWEEN:
            events += self._events(blank[0])
        self._blank = self._blank and blank.end() == len(text)
        return blank.end()

    def _goes_on(self, text: str, at: int, tag: re.Match[str] | None) -> bool:
        """Whether the text at a place behind a stage is neither a tag nor the start of one."""
        if tag is not None:
            return tag.start() > at
        return self._tail(text, at) < len(text) - at

    def _tail(self, text: str, at: int) -> int:
        """How many characters at the end may become a tag."""
        sizes = range(min(len(text) - at, LONGEST_TAG - 1), 0, -1)
        return next((size for size in sizes if any(tag.startswith(text[-size:]) for tag in TAGS[self._place])), 0)

    def _events(self, text: str) -> list[Event]:
        if not text:
            return []
        thought = self._place in (Place.STAGE, Place.BETWEEN)
        return [ReasoningDelta(text) if thought else TextDelta(text)]
