"""What tool parsers share: counting calls, white space around them, and falling back to text."""

from __future__ import annotations

from llmk.api import ParserContext, TextDelta, ToolCallFailed
from llmk_parsers.call_object import CallObject
from llmk_parsers.machine import Machine


class ToolMachine(Machine):
    """Base of tool parsers.

    Text is emitted by :meth:`_say`, which drops white space before, between and after calls. A call written as a JSON
    object is read by :meth:`_start_object` and :meth:`_read_object`; if it is not a call, it becomes text, including
    its ``opening``, even if the call has already started.
    """

    STRICT = False
    """Passed on to :class:`CallObject`."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__()
        self._calls = 0
        self._said = False
        self._blank: list[str] = []
        self._opening: list[str] = []
        self._before = ""
        """The white space and opening of a started call, in case it becomes text."""
        self._object = CallObject(0)

    def _say(self, text: str) -> None:
        if not text:
            return
        if not self._said and not text.strip():
            self._blank.append(text)
        else:
            self._out.append(TextDelta("".join([*self._blank, text])))
            self._blank.clear()
            self._said = True

    def _start_call(self) -> int:
        """Starts a call and returns its number; the text after it is new content."""
        self._blank.clear()
        self._said = False
        self._calls += 1
        return self._calls - 1

    def _start_object(self, opening: str = "") -> None:
        """The next character starts a call's object. ``opening`` is text that was read but not emitted."""
        self._opening.append(opening)
        self._object = CallObject(self._calls, strict=self.STRICT)

    def _read_object(self) -> bool | None:
        """Continues to read the object: whether it is a call, or ``None`` if it is not complete yet."""
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

    def _give_up(self, text: str = "") -> None:
        """Emits the text held back since the opening marker, which is not a call, followed by ``text``."""
        self._say("".join([*self._opening, text]))
        self._opening.clear()

    def _close(self) -> None:
        if self._blank and not self._calls:
            self._out.append(TextDelta("".join(self._blank)))
        self._blank.clear()
