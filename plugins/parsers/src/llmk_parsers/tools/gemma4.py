"""Calls as ``call:name{key:value}``, with markers for quotes: Gemma 4."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from llmk.api import ParserContext
from llmk_parsers.machine import Markers, markers
from llmk_parsers.marked_calls import MarkedCalls
from llmk_parsers.quote_writer import QuoteMarks, QuoteWriter
from llmk_parsers.schema_values import Schema, converted, decoded, fitted

_NAME = re.compile(r"\s*(?:call)?\s*:?\s*(?P<name>[^\s<>{}()\[\]\":,]+)\s*")
_NAME_SO_FAR = re.compile(r"\s*(?:c(?:a(?:l(?:l)?)?)?)?\s*:?\s*(?:[^\s<>{}()\[\]\":,]+\s*)?")
_ANY = re.compile(r".*", re.DOTALL)
_BETWEEN = re.compile(r"[\s,]*")
_DEEPEST = 64
"""Nesting of a value; a call with a deeper one is text."""


class Gemma4(MarkedCalls):
    """Strings stand between markers, other values as they are; objects and arrays are as in JSON, but for quotes. A
    value without quotes is read by the tool's schema, or as JSON, or is a string."""

    STRIP = True
    MARKS: ClassVar[QuoteMarks] = QuoteMarks(
        call="<|tool_call>", list_ends=("<tool_call|>",), fillers=("}", ")"), quote='<|"|>'
    )
    HEADER_END: ClassVar[Markers] = markers("{", "(")
    KEY_END: ClassVar[Markers]
    VALUE_END: ClassVar[Markers]
    QUOTE: ClassVar[Markers]
    NESTED: ClassVar[Markers]

    @classmethod
    def _compile(cls) -> None:
        super()._compile()
        marks = cls.MARKS
        cls.KEY_END = markers(":", *marks.list_ends)
        cls.VALUE_END = markers(",", "}", *marks.list_ends)
        cls.QUOTE = markers(marks.quote)
        cls.NESTED = markers("{", "}", "[", "]", marks.quote)

    _key: str
    """Of the open argument."""
    _depth: int
    """Open brackets of its value."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._pieces: list[str] = []
        self._quoted = False

    def _name(self) -> bool:
        empty = self._next_is(*self.MARKS.list_ends)
        if empty is None:
            return False
        if empty:
            self._at += len(empty)
            self._drop_empty()
            return True
        header = self._read_header(self.HEADER_END, _NAME, _NAME_SO_FAR)
        if header is None:
            return False
        if not header:
            self._no_call()
        elif self._named(header[0]["name"]):
            self._state = self._between
        return True

    def _between(self) -> bool:
        """State before an argument or the end of the arguments."""
        found = _BETWEEN.match(self._text, self._at)
        self._at = found.end() if found else self._at
        marker = self._next_is("}", ")", *self.MARKS.list_ends, self.MARKS.quote)
        if marker is None:
            return False
        if marker in ("}", ")", *self.MARKS.list_ends):
            self._end_stream()
        elif self._at == len(self._text):
            self._fail_stream()
        else:
            self._at += len(marker)
            self._state = self._quoted_key if marker else self._bare_key
        return True

    def _bare_key(self) -> bool:
        return self._read_key(self.KEY_END, ":", self._before_value)

    def _quoted_key(self) -> bool:
        return self._read_key(self.QUOTE, self.MARKS.quote, self._colon)

    def _read_key(self, ends: Markers, end: str, then: Callable[[], bool]) -> bool:
        header = self._read_header(ends, _ANY)
        if header is None:
            return False
        if header and header[1] == end:
            self._key = header[0].group().strip() if end == ":" else header[0].group()
            self._state = then
        else:
            self._fail_stream()
        return True

    def _colon(self) -> bool:
        self._skip_space()
        marker = self._next_is(":")
        if marker is None:
            return False
        self._at += len(marker)
        if marker:
            self._state = self._before_value
        else:
            self._fail_stream()
        return True

    def _before_value(self) -> bool:
        assert self._call is not None
        self._skip_space()
        marker = self._next_is(self.MARKS.quote, "{", "[")
        if marker is None:
            return False
        if marker == self.MARKS.quote:
            self._at += len(marker)
            literal = "string" in self._call.schema(self._key).types or None
            self._call.start_value(self._key, literal)
            self._state = self._in_string
        else:
            self._depth = 0
            self._state = self._nested if marker else self._bare_value
        return True

    def _in_string(self) -> bool:
        assert self._call is not None
        text, found = self._read_until(self.QUOTE)
        self._call.text(text)
        if found:
            self._call.end_value()
            self._state = self._between
        elif self._ended:
            self._fail_stream()
        return bool(found)

    def _bare_value(self) -> bool:
        assert self._call is not None
        text, found = self._read_until(self.VALUE_END)
        self._pieces.append(text)
        if found:
            self._at -= len(found)
            self._call.value(self._key, _plain("".join(self._pieces), self._call.schema(self._key)))
            self._pieces.clear()
            self._state = self._between
        elif self._ended:
            self._fail_stream()
        return bool(found)

    def _nested(self) -> bool:
        """Collects an object or an array up to its closing bracket."""
        assert self._call is not None
        text, found = self._read_until(self.QUOTE if self._quoted else self.NESTED)
        self._pieces += (text, found)
        if found == self.MARKS.quote:
            self._quoted = not self._quoted
        elif found:
            self._depth += 1 if found in "{[" else -1
        if (self._ended and not found) or self._depth > _DEEPEST:
            self._pieces.clear()
            self._fail_stream()
        elif found and not self._depth:
            schema = self._call.schema(self._key)
            value, _ = _Nested("".join(self._pieces), self.MARKS.quote).value(0, schema)
            self._call.value(self._key, value)
            self._pieces.clear()
            self._state = self._between
        return bool(found)


class _Nested:
    """Reads an object or an array whose brackets match."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._bare = re.compile(rf"(?:(?!{re.escape(quote)})[^,{{}}\[\]])*")
        self._bare_key = re.compile(rf"(?:(?!{re.escape(quote)})[^,{{}}\[\]:])*")

    def value(self, at: int, schema: Schema) -> tuple[Any, int]:
        """The value at ``at``, and the position after it."""
        at = self._space(at)
        if self._text.startswith(self._quote, at):
            text, at = self._string(at)
            return fitted(text, schema), at
        if self._text.startswith("{", at):
            return self._object(at + 1, schema)
        if self._text.startswith("[", at):
            return self._array(at + 1, schema)
        found = self._bare.match(self._text, at)
        assert found is not None
        return _plain(found.group(), schema), found.end()

    def _object(self, at: int, schema: Schema) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        while (at := self._space(at)) < len(self._text) and self._text[at] not in "}]":
            start = at
            if self._text.startswith(self._quote, at):
                key, at = self._string(at)
            else:
                found = self._bare_key.match(self._text, at)
                assert found is not None
                key, at = found.group().strip(), found.end()
            at = self._space(at)
            if self._text.startswith(":", at):
                result[key], at = self.value(at + 1, schema.member(key))
            at = max(at, start + 1)
        return result, at + 1

    def _array(self, at: int, schema: Schema) -> tuple[list[Any], int]:
        result: list[Any] = []
        items = schema.items or Schema({})
        while (at := self._space(at)) < len(self._text) and self._text[at] not in "}]":
            item, end = self.value(at, items)
            result.append(item)
            at = max(end, at + 1)
        return result, at + 1

    def _string(self, at: int) -> tuple[str, int]:
        at += len(self._quote)
        end = self._text.find(self._quote, at)
        return (self._text[at:end], end + len(self._quote)) if end >= 0 else (self._text[at:], len(self._text))

    def _space(self, at: int) -> int:
        found = _BETWEEN.match(self._text, at)
        return found.end() if found else at


def _plain(text: str, schema: Schema) -> Any:
    """The value of text without quotes."""
    return converted(text.strip(), schema) if schema.declared else decoded(text.strip(), schema)


WRITER = QuoteWriter(Gemma4.MARKS, Gemma4.MARKS.call)
