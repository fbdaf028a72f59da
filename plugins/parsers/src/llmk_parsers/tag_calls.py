"""The state machine of dialects that write a call in tags, and each of its arguments in tags of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.machine import Markers, markers
from llmk_parsers.marked_calls import CallMarks, MarkedCalls

_NAME = r"[^\s<>{}()\[\]\"'=]+"
PLAIN = re.compile(rf"\s*(?P<name>{_NAME})\s*")
"""A name as in ``<function=name>``."""
ANYTHING = re.compile(r"\s*(?P<name>\S(?:.*\S)?)\s*", re.DOTALL)
"""A name with anything in it."""
NAMED = re.compile(r"""\s+name\s*=\s*(?:"(?P<name>[^"<>]+)"|'(?P<single>[^'<>]+)'|(?P<bare>[^\s"'<>]+))\s*""")
"""A name as in ``<invoke name="name">``."""
PLAIN_SO_FAR = re.compile(rf"\s*(?:{_NAME}\s*)?")
NAMED_SO_FAR = re.compile(r"(?:\s+[^<>]*)?")
_CDATA = ("<![CDATA[", "]]>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags(CallMarks):
    """The markers of a dialect.

    A call is ``call``, a header up to ``name_end`` that contains its name, arguments, and ``call_end``; an argument is
    ``key``, a header up to ``key_end``, ``value`` if that isn't empty, its text, and ``value_end``.
    ``value_stops`` also end a text, if the model forgets ``value_end``.
    """

    name: re.Pattern[str] = NAMED
    name_so_far: re.Pattern[str] = NAMED_SO_FAR
    """What may be a part of a header with a name: other text is returned at once."""
    name_end: str = ">"
    call_end: str
    key: str
    key_name: re.Pattern[str] = NAMED
    """With the name first; then, in the group ``string``, whether the text is a string, or in ``type`` its type."""
    key_end: str = ">"
    value: str = ""
    value_end: str
    value_stops: tuple[str, ...] = ()
    trim: bool = False
    """Whether a line break after ``key_end`` and before ``value_end`` is not part of the text."""
    cdata: bool = False
    """Whether a text may be a CDATA section."""


class TagCalls(MarkedCalls):
    """A dialect is a subclass with its ``MARKS``.

    A list may lack its end, a call and an argument theirs where the next one follows. A call that the text ends in is
    one if its arguments are complete, and none of the required ones is missing.
    """

    MARKS: ClassVar[Tags]
    BETWEEN: ClassVar[Markers]
    """Between arguments."""
    NAME_ENDS: ClassVar[Markers]
    KEY_END: ClassVar[Markers]

    @classmethod
    def _compile(cls) -> None:
        super()._compile()
        tags = cls.MARKS
        cls.BETWEEN = markers(tags.key, tags.call_end, *tags.list_ends, *tags.lists, tags.call)
        others = () if tags.name_end in tags.call_end else (tags.key, tags.call_end)
        cls.NAME_ENDS = markers(*dict.fromkeys((tags.name_end, *others)))
        cls.KEY_END = markers(tags.key_end)

    _argument: tuple[str, bool | None]
    """Of the open argument: its name, and whether it is a string."""
    _closing: str
    """Of the open argument: what ends it."""
    _line_break: bool
    """Whether a line break was held back that may be the last one of the open argument."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)

    def _name(self) -> bool:
        tags = self.MARKS
        header = self._read_header(self.NAME_ENDS, tags.name, tags.name_so_far)
        if header is None:
            return False
        if not header:
            self._no_call()
            return True
        match, found = header
        if found in (tags.key, tags.call_end):
            self._at -= len(found)
        if self._named(next(group for group in match.groups() if group)):
            self._state = self._between
        return True

    def _between(self) -> bool:
        """State between arguments: text there means nothing."""
        tags = self.MARKS
        _, marker = self._read_until(self.BETWEEN)
        if marker == tags.key:
            self._state = self._key
        elif marker:
            if marker != tags.call_end:
                self._at -= len(marker)
            self._end_stream()
            if marker != tags.call_end:
                self._at += len(marker)
                self._saw(marker)
        elif self._ended:
            self._end_cut_off()
        return bool(marker)

    def _end_cut_off(self) -> None:
        """The text has ended between arguments."""
        assert self._call is not None
        if self._call.may_end():
            self._end_stream()
        else:
            self._fail_stream()

    def _key(self) -> bool:
        tags = self.MARKS
        header = self._read_header(self.KEY_END, tags.key_name)
        if header is None:
            return False
        if not header:
            self._fail_stream()
            return True
        groups = header[0].groupdict()
        literal, kind = groups.pop("string", None), groups.pop("type", None)
        name = next(group for group in groups.values() if group)
        if literal is not None:
            kind = "string" if literal.lower() == "true" else "json"
        self._argument = (name, self._is_text(name, kind))
        self._state = self._before_value
        if not tags.value:
            self._start_value()
        return True

    def _is_text(self, name: str, kind: str | None) -> bool | None:
        """Whether an argument is a string by what the model wrote of its type; ``None``: that is for the schema to say,
        as it is where the schema has no such type."""
        assert self._call is not None
        schema = self._call.schema(name)
        if not kind or kind == "any" or (schema.declared and kind != "json" and kind not in schema.types):
            return None
        return kind == "string"

    def _start_value(self) -> None:
        assert self._call is not None
        self._call.start_value(*self._argument)
        self._line_break = False
        self._closing = self.MARKS.value_end
        self._state = self._value_start if self.MARKS.trim or self.MARKS.cdata else self._value

    def _before_value(self) -> bool:
        """State between an argument's name and the marker of its value."""
        self._skip_space()
        marker = self._next_is(self.MARKS.value)
        if marker is None:
            return False
        self._at += len(marker)
        if marker:
            self._start_value()
        elif self._ended and self._at == len(self._text):
            self._fail_stream()
        else:
            self._state = self._between
        return True

    def _value_start(self) -> bool:
        """State at the first character of a value."""
        marker = self._next_is(*(("\n",) if self.MARKS.trim else ()), *((_CDATA[0],) if self.MARKS.cdata else ()))
        if marker is None:
            return False
        self._at += len(marker)
        if marker == _CDATA[0]:
            self._closing = _CDATA[1] + self.MARKS.value_end
        self._state = self._value
        return True

    def _value(self) -> bool:
        tags = self.MARKS
        assert self._call is not None
        stops = tags.value_stops if self._closing == tags.value_end else ()
        text, marker = self._read_until(markers(self._closing, *stops))
        self._value_text(text)
        if marker:
            if marker != self._closing:
                self._at -= len(marker)
            self._call.end_value()
            self._state = self._between
        elif self._ended:
            self._fail_stream()
        return bool(marker)

    def _value_text(self, text: str) -> None:
        """Passes on ``text`` without a line break at its end, which may be that of the value."""
        assert self._call is not None
        if self.MARKS.trim:
            text = "\n" * self._line_break + text
            self._line_break = text.endswith("\n")
            text = text.removesuffix("\n")
        self._call.text(text)
