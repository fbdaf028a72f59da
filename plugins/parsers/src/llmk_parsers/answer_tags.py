"""Think tags of models that put the answer between tags too."""

from __future__ import annotations

from typing import ClassVar

from llmk.api import Event, ParserContext, TextDelta
from llmk_parsers.machine import Machine, markers
from llmk_parsers.think_tags import ThinkTags

_MOST_BLANK = 64
"""Characters of white space that may be before the answer's opening tag."""


class _Unwrapped(Machine):
    """The text between ``start`` and ``end``, which are dropped; text without ``start`` at its start stays as it is."""

    def __init__(self, start: str, end: str, trim: bool) -> None:
        super().__init__()
        self._start, self._end, self._trim = start, end, trim
        self._until_end = markers(end)
        self._break = ""
        self._state = self._before

    def _before(self) -> bool:
        text = self._text[self._at :].lstrip()
        if text.startswith(self._start):
            self._at = len(self._text) - len(text) + len(self._start)
            self._state = self._line_break
            return True
        blank = len(self._text) - self._at - len(text)
        if not self._ended and self._start.startswith(text) and blank <= _MOST_BLANK:
            return False
        self._state = self._plain
        return bool(text)

    def _line_break(self) -> bool:
        if self._at == len(self._text):
            return False
        self._at += self._text.startswith("\n", self._at)
        self._state = self._inside
        return True

    def _inside(self) -> bool:
        text, marker = self._read_until(self._until_end)
        if self._trim:
            text = self._break + text
            self._break = "\n" if text.endswith("\n") and not (self._ended and not marker) else ""
            text = text[: len(text) - len(self._break)]
        self._say(text)
        if marker:
            self._state = self._behind
        return bool(marker)

    def _behind(self) -> bool:
        """After the answer: white space is dropped."""
        self._at = len(self._text) - len(self._text[self._at :].lstrip())
        if self._at < len(self._text):
            self._state = self._plain
            return True
        return False

    def _plain(self) -> bool:
        self._say(self._text[self._at :])
        self._at = len(self._text)
        return False

    def _say(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))


class AnswerTags(ThinkTags):
    """Think tags, and tags around the answer that are dropped with the line breaks inside of them."""

    ANSWER: ClassVar[tuple[str, str]] = ("<answer>", "</answer>")
    TRIM_ANSWER: ClassVar[bool] = True
    """Whether a line break before the answer's closing tag belongs to the tag."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._answer = _Unwrapped(*self.ANSWER, trim=self.TRIM_ANSWER)

    def _taken(self) -> list[Event]:
        events: list[Event] = []
        for event in super()._taken():
            events += self._answer.push(event.text) if isinstance(event, TextDelta) else [event]
        return events

    def finish(self) -> list[Event]:
        """The text has ended: returns what was held back."""
        return [*super().finish(), *self._answer.finish()]
