"""What tool parsers share: counting calls, white space around them, and falling back to text."""

from __future__ import annotations

from typing import ClassVar

from llmk.api import ParserContext, TextDelta, ToolCallFailed
from llmk_parsers.call_object import CallObject
from llmk_parsers.call_reader import CallReader
from llmk_parsers.json_value import Brackets
from llmk_parsers.machine import Machine


class ToolMachine(Machine):
    """Base of tool parsers.

    Text is emitted by :meth:`_say`, which drops white space before, between and after calls. A call written as a JSON
    object is read by :meth:`_start_object` and :meth:`_read_object`; if it is not a call, it becomes text, including
    its ``opening``, even if the call has already started.
    """

    STRIP: ClassVar[bool] = False
    """Whether white space between content and a call is dropped."""

    _before: str
    """The white space and opening of a started call, in case it becomes text."""
    _object: CallReader
    """Of the open call."""
    _other: Brackets
    """Of the open brackets that are no call."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._calls = 0
        self._said = False
        self._blank: list[str] = []
        self._opening: list[str] = []

    def _say(self, text: str) -> None:
        if not text:
            return
        body = text.rstrip()
        if not body and (self.STRIP or not self._said):
            self._blank.append(text)
            return
        body = body if self.STRIP else text
        self._out.append(TextDelta("".join([*self._blank, body])))
        self._blank = [text[len(body) :]] if len(body) < len(text) else []
        self._said = True

    def _start_call(self) -> int:
        """Starts a call and returns its number; the text after it is new content."""
        self._blank.clear()
        self._said = False
        self._calls += 1
        return self._calls - 1

    def _reader(self, mark: str) -> CallReader:
        """The reader of the next call, which starts with ``mark``."""
        return CallObject(self._calls)

    def _brackets(self) -> Brackets:
        """Finds the end of what is no call."""
        return Brackets()

    def _start_object(self, opening: str = "") -> None:
        """The next character starts a call's object. ``opening`` is text that was read but not emitted."""
        self._opening.append(opening)
        self._object = self._reader(self._text[self._at])

    def _read_object(self) -> bool | None:
        """Continues to read the object: whether it is a call, or ``None`` if it is not complete yet."""
        self._object.final = self._ended
        self._at = self._object.feed(self._text, self._at)
        if self._ended and not self._object.done:
            self._object.finish()
        if self._object.started and self._object.index == self._calls:
            self._before = "".join([*self._blank, *self._opening])
            self._start_call()
            self._opening.clear()
        for event in self._object.take():
            if isinstance(event, ToolCallFailed):
                event = ToolCallFailed(event.index, self._before + event.text)
                self._said = True
            self._out.append(event)
        if not (self._object.done or self._object.bad):
            return None
        if not self._object.started:
            self._give_up(self._object.raw)
        return self._object.started and not self._object.failed

    def _skip_other(self) -> bool | None:
        """Continues to read what turned out to be no call, which is text: whether its closing bracket was found, or
        ``None`` if it is not complete yet."""
        start = self._at
        self._at = self._other.feed(self._text, start)
        self._say(self._text[start : self._at])
        return self._other.complete if self._other.complete or self._other.stopped or self._ended else None

    def _start_other(self) -> bool:
        """What was read of the object is no call; whether its closing bracket is missing."""
        self._other = self._brackets()
        self._other.feed(self._object.raw, 0)
        return self._other.depth > 0 and not self._other.stopped

    def _give_up(self, text: str = "") -> None:
        """Emits the text held back since the opening marker, which is not a call, followed by ``text``."""
        self._say("".join([*self._opening, text]))
        self._opening.clear()

    def _close(self) -> None:
        if self._blank and not self._calls:
            self._out.append(TextDelta("".join(self._blank)))
        self._blank.clear()
