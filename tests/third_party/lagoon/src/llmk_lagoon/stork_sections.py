"""The dialect of OpenThinker and Sky-T1, whose answers have a section of thoughts and one with the solution:

    <|begin_of_thought|>

    Oslo is in the north.

    <|end_of_thought|>

    <|begin_of_solution|>

    Oslo.

    <|end_of_solution|>

Markers are dropped, with the line breaks that stand around them in a section, and those behind a section. Text outside
of sections, before them, stays as it is. A prompt may open either section, the solution where it switches thoughts off.
"""

from __future__ import annotations

import re

from llmk.api import Event, ParserContext, ReasoningDelta, TextDelta

THOUGHT, END_OF_THOUGHT = "<|begin_of_thought|>", "<|end_of_thought|>"
SOLUTION, END_OF_SOLUTION = "<|begin_of_solution|>", "<|end_of_solution|>"
_NEXT: dict[str, tuple[str, ...]] = {
    "": (THOUGHT, SOLUTION),
    "thought": (END_OF_THOUGHT,),
    "solution": (END_OF_SOLUTION, THOUGHT),
}
"""The markers that mean something outside of sections, and in each. Elsewhere they are text."""
_SECTION = {THOUGHT: "thought", SOLUTION: "solution", END_OF_THOUGHT: "", END_OF_SOLUTION: ""}
"""Where the text behind a marker is."""
_FIND = {section: re.compile("|".join(map(re.escape, markers))) for section, markers in _NEXT.items()}


class Sections:
    """Follows ``llmk.api.ReasoningParser``. Text is passed on at once, except what may become a marker, and line breaks
    that may stand before one."""

    def __init__(self, context: ParserContext) -> None:
        tail = context.prompt_tail.rstrip()
        self._section = next((section for marker, section in _SECTION.items() if tail.endswith(marker)), "")
        self._behind = context.prompt_tail.rstrip("\n").endswith(tuple(_SECTION))
        """Whether nothing but line breaks came since a marker."""
        self._breaks = 0
        """Line breaks of a section that are held back: they may be the last ones before a marker."""
        self._held = ""
        """The end of the text, which may be the start of a marker."""

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns the events that are now certain."""
        text, at = self._held + text, 0
        events: list[Event] = []
        while marker := _FIND[self._section].search(text, at):
            self._add(text[at : marker.start()], events)
            self._section, self._behind, self._breaks = _SECTION[marker.group()], True, 0
            at = marker.end()
        end = len(text) - self._started(text, at)
        self._add(text[at:end], events)
        self._held = text[end:]
        return events

    def finish(self) -> list[Event]:
        """At the end of the text: what was held back is no marker."""
        events: list[Event] = []
        self._add(self._held, events)
        self._held = ""
        self._emit("\n" * self._breaks, events)
        self._breaks = 0
        return events

    def _started(self, text: str, at: int) -> int:
        """How many of the last characters may be the start of a marker."""
        start = text.rfind("<", max(at, len(text) - len(SOLUTION) + 1))
        if start < 0 or not any(marker.startswith(text[start:]) for marker in _NEXT[self._section]):
            return 0
        return len(text) - start

    def _add(self, text: str, events: list[Event]) -> None:
        """Passes text on, without line breaks behind a marker, and keeps its last ones in a section."""
        if self._behind:
            text = text.lstrip("\n")
        if not text:
            return
        self._behind = False
        if not self._section:
            self._emit(text, events)
        elif kept := text.rstrip("\n"):
            self._emit("\n" * self._breaks + kept, events)
            self._breaks = len(text) - len(kept)
        else:
            self._breaks += len(text)

    def _emit(self, text: str, events: list[Event]) -> None:
        if text:
            events.append(ReasoningDelta(text) if self._section == "thought" else TextDelta(text))
