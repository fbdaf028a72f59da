"""The machine of dialects that mark where calls start: objects, or Python calls, one or a list of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.machine import Markers, markers
from llmk_parsers.tool_machine import ToolMachine

_SPACE = re.compile(r"\s*")


class CallRegions(ToolMachine):
    """Calls in regions of the text, each behind an opening marker: any number of calls, in a list or not.

    What is no call is text, including the marker if no call came before. Behind a call, separators and stray closing
    brackets are skipped; a missing closing marker is forgiven.
    """

    PAIRS: ClassVar[Mapping[str, str]]
    """The opening markers, and the closing marker of each (``""``: the region ends with the list or the call)."""
    INNER: ClassVar[Sequence[str]] = ()
    """What may stand between the opening marker and the first call."""
    DROPPED: ClassVar[Sequence[str]] = ()
    """Markers that end content, and say nothing."""
    VERBATIM: ClassVar[Mapping[str, str]] = {}
    """Markers of text in which no calls are, and those that close it."""
    LIST_STARTS_LINE: ClassVar[bool] = False
    """Whether a line that starts with ``[`` may be a list of calls, without a marker."""
    SEPARATORS: ClassVar[str] = ",;"

    _next_closing: str
    """Closes the open region once it has a call."""
    _in_list: bool
    """Of the open region: whether a list is open."""
    _found: bool
    """Whether something that may have been a call was read in it."""
    _verbatim_end: Markers

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._expect_closing("")
        self._called = False
        self._line_starts = True
        self._state = self._content

    def _starts_call(self, mark: str) -> bool:
        """Whether a call may start with this character."""
        return mark == "{"

    def _expect_closing(self, closing: str) -> None:
        """``closing`` closes the region whose calls were read last (``""``: none is open)."""
        self._closing = closing
        bare = ("[",) if self.LIST_STARTS_LINE else ()
        more = (closing,) if closing and closing not in self.PAIRS else ()
        self._wanted = markers(*self.PAIRS, *more, *self.DROPPED, *self.VERBATIM, *bare)

    def _content(self) -> bool:
        text, marker = self._read_until(self._wanted)
        if not (self._ended and self._cut_off(text)):
            self._say(text)
        if self.LIST_STARTS_LINE:
            _, break_, line = text.rpartition("\n")
            self._line_starts = (self._line_starts or bool(break_)) and not line.strip()
        if marker:
            self._at_marker(marker)
        return bool(marker)

    def _cut_off(self, text: str) -> bool:
        """Whether the text ended inside the closing marker."""
        return bool(self._closing) and not self._said and self._closing.startswith(text)

    def _at_marker(self, marker: str) -> None:
        if marker == self._closing:
            self._expect_closing("")
        elif marker in self.DROPPED:
            self._blank.clear()
            self._said = False
        elif marker in self.VERBATIM:
            self._say(marker)
            self._verbatim_end = markers(self.VERBATIM[marker])
            self._state = self._verbatim
        elif marker == "[":
            self._open_line()
        else:
            self._open(marker, self.PAIRS[marker])

    def _verbatim(self) -> bool:
        text, marker = self._read_until(self._verbatim_end)
        self._say(text + marker)
        if marker:
            self._line_starts = True
            self._state = self._content
        return bool(marker)

    def _open_line(self) -> None:
        if self._line_starts:
            self._open("[", "")
        else:
            self._say("[")
        self._line_starts = False

    def _open(self, marker: str, closing: str) -> None:
        self._opening.append(marker)
        self._expect_closing("")
        self._next_closing = closing
        self._in_list = marker.endswith("[")
        self._found = self._called = False
        self._state = self._between

    def _between(self) -> bool:
        """Before the first call of a region, or behind one."""
        if self._called and not self._closing and not self._in_list:
            return self._leave()
        found = _SPACE.match(self._text, self._at)
        self._skip(found.end() if found else self._at)
        rest = self._text[self._at : self._at + 32]
        if not rest:
            return self._leave() if self._ended else False
        if not self._called:
            if inner := [mark for mark in self.INNER if mark.startswith(rest) or rest.startswith(mark)]:
                return self._inner(inner[0], rest)
            if rest[0] == "[":
                self._in_list = True
                self._skip(self._at + 1)
                return True
        if (rest[0] in self.SEPARATORS and self._found) or (rest[0] in "]}" and self._called):
            self._in_list = self._in_list and rest[0] != "]"
            self._skip(self._at + 1)
            return True
        if not self._starts_call(rest[0]):
            return self._leave()
        self._found = True
        self._start_object()
        self._state = self._in_object
        return True

    def _inner(self, mark: str, rest: str) -> bool:
        if not rest.startswith(mark):
            return self._leave() if self._ended else False
        self._skip(self._at + len(mark))
        return True

    def _skip(self, end: int) -> None:
        """What is between calls is dropped; what is before the first one may still become text."""
        if not self._called:
            self._opening.append(self._text[self._at : end])
        self._at = end

    def _leave(self) -> bool:
        """What follows is content."""
        self._give_up()
        self._line_starts = self._called
        self._state = self._content
        return True

    def _in_object(self) -> bool:
        called = self._read_object()
        if called:
            self._called = True
            self._expect_closing(self._next_closing)
            self._state = self._between
        elif called is False:
            self._state = self._in_other if self._start_other() else self._leave
        return called is not None

    def _in_other(self) -> bool:
        complete = self._skip_other()
        if complete is None:
            return False
        self._state = self._between if complete else self._leave
        return True


class TrimmedText(CallRegions):
    """Drops white space around calls also where there is text, whose parts then are lines."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._spoken = False

    def _say(self, text: str) -> None:
        if self._calls and not self._said:
            text = text.lstrip()
            text = "\n" + text if text and self._spoken else text
        body = text.rstrip()
        self._spoken = self._spoken or bool(body)
        super()._say(body)
        self._blank.append(text[len(body) :])
