"""What dialects with markers of their own share: the text of an open call, the tools' schemas, and its failure."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from llmk.api import Event, ParserContext, ToolCallFailed
from llmk_parsers.call_stream import CallStream, Review
from llmk_parsers.machine import Markers, markers
from llmk_parsers.schema_values import Schema, tool_schemas
from llmk_parsers.tool_machine import ToolMachine

LONGEST_HEADER = 512
"""Characters of a call's or an argument's name; a longer one is not a name."""
_LONGEST_END = 64
"""Characters of a marker after a name."""
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarks:
    """The markers around calls.

    ``lists`` are the markers of a list of calls, the first one the usual one, and ``list_ends`` those of its end;
    ``fillers`` may stand around calls in a list. A call starts with ``call``, with ``bare`` also outside of a list.
    """

    lists: tuple[str, ...] = ()
    list_ends: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    bare: bool = True
    call: str
    unknown: Literal["call", "text", "drop"] = "call"
    """What a call of a tool is that the request doesn't have."""


def _ignore(event: Event) -> None:
    """Takes the events of a call that is dropped."""


class MarkedCalls(ToolMachine):
    """Base of the machines of such dialects; each is a subclass with its ``MARKS``.

    A list may lack its end. From :meth:`_open_raw` on, the text that is read is kept, so that a call that turns out to
    be none becomes content as it was written.
    """

    REVIEW: ClassVar[tuple[Review, frozenset[str]] | None] = None
    """Passed on to :class:`CallStream`: ``review`` and ``wrappers``."""

    MARKS: ClassVar[CallMarks]
    OUTSIDE: ClassVar[Markers]
    """In content."""
    AFTER_CALL: ClassVar[Markers]
    """In content after a call, whose list may not have ended."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "MARKS"):
            cls._compile()

    @classmethod
    def _compile(cls) -> None:
        """Compiles the markers of the dialect's states."""
        marks = cls.MARKS
        cls.OUTSIDE = markers(*marks.lists, *((marks.call,) if marks.bare else ()))
        cls.AFTER_CALL = markers(*marks.lists, marks.call, *marks.list_ends)

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._list_open = False
        self._state = self._content
        self._tools = tool_schemas(context.tools)
        self._raw: list[str] | None = None
        self._mark = 0
        self._call: CallStream | None = None
        self._calls_here = 0
        """Calls since the marker of a list of calls."""

    def push(self, text: str) -> list[Event]:
        """See :meth:`Machine.push`."""
        if self._raw is not None:
            self._raw.append(self._text[self._mark : self._at])
            self._mark = 0
        return super().push(text)

    @abstractmethod
    def _name(self) -> bool:
        """State after a call's marker."""
        ...

    def _content(self) -> bool:
        text, marker = self._read_until(self.AFTER_CALL if self._list_open else self.OUTSIDE)
        ends = self.MARKS.list_ends
        cut_off = self._ended and self._list_open and not self._said and any(end.startswith(text) for end in ends)
        self._say("" if cut_off else text)
        if marker:
            self._saw(marker)
        return bool(marker)

    def _saw(self, marker: str) -> None:
        """A marker outside of a call was read."""
        if marker == self.MARKS.call:
            self._open_raw(marker)
            self._list_open = True
            self._state = self._name
        elif marker in self.MARKS.lists:
            self._opening.append(marker)
            self._calls_here = 0
            self._state = self._in_list
        else:
            self._list_open = False
            self._state = self._content

    def _in_list(self) -> bool:
        """State between calls."""
        marks, skipped = self.MARKS, self._skip_space()
        marker = self._next_is(marks.call, *marks.fillers, *marks.list_ends)
        if self._calls_here:
            self._say(skipped)
        else:
            self._opening.append(skipped)
        if marker is None:
            return False
        self._at += len(marker)
        if marker in marks.fillers:
            if not self._calls_here:
                self._opening.append(marker)
        elif marker in marks.list_ends and not self._calls_here:
            self._drop_empty()
        elif marker:
            self._saw(marker)
        else:
            self._give_up()
            self._to_content()
        return True

    def _drop_empty(self) -> None:
        """A list ended without a call."""
        self._opening.clear()
        self._list_open = False
        self._state = self._content

    def _to_content(self) -> None:
        self._list_open = self._calls_here > 0
        self._state = self._content

    def _open_raw(self, marker: str) -> None:
        """A call's marker was read."""
        self._raw = [marker]
        self._mark = self._at

    def _raw_text(self) -> str:
        assert self._raw is not None
        return "".join([*self._raw, self._text[self._mark : self._at]])

    def _start_stream(self, name: str, call_id: str | None = None, *, drop: bool = False) -> CallStream:
        """Starts a call, of which no events are returned if it is to ``drop``."""
        self._before = "".join([*self._blank, *self._opening])
        self._opening.clear()
        review, wrappers = self.REVIEW or (None, frozenset())
        emit: Callable[[Event], None] = _ignore if drop else self._out_event
        if drop:
            self._blank.clear()
            index = -1
        else:
            index = self._start_call()
        self._calls_here += 1
        call = CallStream(index, self._tools.get(name, Schema({})), emit, review, wrappers)
        call.start(name, call_id)
        self._call = call
        return call

    def _out_event(self, event: Event) -> None:
        # Not a bound method of the list: the base class replaces the list.
        self._out.append(event)

    def _end_stream(self) -> None:
        """The open call is complete, or fails if it is no call."""
        assert self._call is not None
        if self._call.end():
            self._raw = None
            self._call = None
            self._state = self._in_list
        else:
            self._fail_stream()

    def _fail_stream(self) -> None:
        """The open call is not a call: all of its text becomes content."""
        assert self._call is not None
        if self._call.index >= 0:
            self._out.append(ToolCallFailed(self._call.index, self._before + self._raw_text()))
            self._said = True
        self._raw = None
        self._call = None
        self._state = self._content

    def _no_call(self) -> None:
        """What was read since the call's marker is content."""
        text = self._raw_text()
        self._raw = None
        self._give_up(text)
        self._to_content()

    def _named(self, name: str, call_id: str | None = None) -> CallStream | None:
        """Starts the call of ``name``, unless it is not a call."""
        unknown = bool(self._tools) and name not in self._tools
        if not name or (unknown and self.MARKS.unknown == "text"):
            self._no_call()
            return None
        return self._start_stream(name, call_id, drop=unknown and self.MARKS.unknown == "drop")

    def _read_header(
        self, ends: Markers, wanted: re.Pattern[str], so_far: re.Pattern[str] | None = None
    ) -> tuple[re.Match[str], str] | Literal[False] | None:
        """Reads the header of a call or an argument: its match, and the marker after it; ``None`` if it is not complete
        yet, ``False`` if there is no such header. Then nothing is read, as the text may contain other markers.

        ``so_far`` matches each start of a header, so that other text is not held back.
        """
        window = self._text[self._at : self._at + LONGEST_HEADER + _LONGEST_END]
        found = ends.search(window, 0)
        if found:
            match = wanted.fullmatch(window, 0, found.start()) if found.start() <= LONGEST_HEADER else None
            if match is None:
                return False
            self._at += found.end()
            return match, found.group()
        known = ends.hold_from(window, 0)
        if self._ended or known > LONGEST_HEADER or (so_far and not so_far.fullmatch(window, 0, known)):
            return False
        return None

    def _skip_space(self) -> str:
        found = _SPACE.match(self._text, self._at)
        skipped = found.group() if found else ""
        self._at += len(skipped)
        return skipped

    def _next_is(self, *texts: str) -> str | None:
        """Which of ``texts`` comes next: ``""`` for none, ``None`` if that isn't known yet, as at the end."""
        for text in texts:
            if self._text.startswith(text, self._at):
                return text
        rest = self._text[self._at : self._at + max(map(len, texts), default=0)]
        if not self._ended and any(text.startswith(rest) for text in texts):
            return None
        return ""
