"""The state machine of dialects that write a call as its name and a JSON object, with markers around them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from llmk.api import ParserContext, ToolCallArguments, ToolCallEnd
from llmk_parsers.json_value import JsonValue
from llmk_parsers.machine import Markers, markers
from llmk_parsers.marked_calls import CallMarks, MarkedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMarks(CallMarks):
    """The markers of a dialect. A call is ``call``, a header that ``name`` matches up to one of ``name_ends``, a JSON
    object, and ``call_end``."""

    name: re.Pattern[str]
    """With the groups ``name`` and, where the dialect has ids, ``id``."""
    name_ends: tuple[str, ...]
    call_end: str


class NamedJson(MarkedCalls):
    """A dialect is a subclass with its ``MARKS``. Markers of ends may be missing; text between the end of the object
    and ``call_end`` means nothing."""

    MARKS: ClassVar[NameMarks]
    NAME_ENDS: ClassVar[Markers]
    CALL_ENDS: ClassVar[Markers]

    @classmethod
    def _compile(cls) -> None:
        super()._compile()
        marks = cls.MARKS
        cls.NAME_ENDS = markers(*marks.name_ends)
        cls.CALL_ENDS = markers(marks.call_end, *marks.list_ends, marks.call)

    _identity: tuple[str, str | None]
    """Of the open call: its name and its id."""
    _arguments: JsonValue

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)

    def _name(self) -> bool:
        header = self._read_header(self.NAME_ENDS, self.MARKS.name)
        if header is None:
            return False
        if header:
            groups = header[0].groupdict()
            self._identity = (groups["name"], groups.get("id"))
            self._state = self._before_arguments
        else:
            self._no_call()
        return True

    def _before_arguments(self) -> bool:
        self._skip_space()
        if self._at == len(self._text) and not self._ended:
            return False
        if not self._text.startswith("{", self._at):
            self._no_call()
            return True
        if self._named(*self._identity):
            self._arguments = JsonValue()
            self._state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        if self._at < len(self._text):
            assert self._call is not None
            start = self._at
            self._at = self._arguments.feed(self._text, start)
            if self._at > start:
                self._out.append(ToolCallArguments(self._call.index, self._text[start : self._at]))
            if self._arguments.complete:
                self._out.append(ToolCallEnd(self._call.index))
                self._call = self._raw = None
                self._state = self._after_arguments
                return True
        if self._arguments.stopped or self._ended:
            self._fail_stream()
            return True
        return False

    def _after_arguments(self) -> bool:
        _, marker = self._read_until(self.CALL_ENDS)
        if not marker:
            return False
        self._state = self._in_list
        if marker != self.MARKS.call_end:
            self._saw(marker)
        return True
