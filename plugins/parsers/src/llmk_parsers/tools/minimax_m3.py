"""Calls as nested elements, each tag after a mark: MiniMax-M3."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from llmk.api import ParserContext
from llmk_parsers.machine import Markers, markers
from llmk_parsers.marked_calls import CallMarks, MarkedCalls
from llmk_parsers.schema_values import Schema, converted
from llmk_parsers.tag_calls import NAMED, NAMED_SO_FAR
from llmk_parsers.tag_writer import TagWriter

_MARK = "]<]minimax[>["
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[^<>]+)")
_DEEPEST = 128
"""Elements in each other; an argument that is nested deeper is dropped."""


@dataclass(slots=True)
class _Element:
    name: str
    texts: list[str] = field(default_factory=list)
    children: list[_Element] = field(default_factory=list)


class MiniMaxM3(MarkedCalls):
    """An argument is an element with its name, a string is its text, and the members of objects and the items of arrays
    are elements in it."""

    MARKS = CallMarks(
        lists=(f"{_MARK}<tool_call>",), list_ends=(f"{_MARK}</tool_call>",), bare=False, call=f"{_MARK}<invoke"
    )
    HEADER_END: ClassVar[Markers] = markers(">")
    MARK: ClassVar[Markers] = markers(_MARK)

    _depth: int
    """The largest one of the open argument."""
    _end_of_string: Markers
    """Of the open argument."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._stack: list[_Element] = []

    def _name(self) -> bool:
        header = self._read_header(self.HEADER_END, NAMED, NAMED_SO_FAR)
        if header is None:
            return False
        self._stack.clear()
        if not header:
            self._no_call()
        elif self._named(next(group for group in header[0].groups() if group)):
            self._state = self._text_of_element
        return True

    def _text_of_element(self) -> bool:
        """State up to the next mark: text of the innermost element, if there is one."""
        text, found = self._read_until(self.MARK)
        if self._stack:
            self._stack[-1].texts.append(text)
        if found:
            self._at -= len(found)
            self._state = self._tag
        elif self._ended:
            self._fail_stream()
        return bool(found)

    def _tag(self) -> bool:
        """State before a mark."""
        self._at += len(_MARK)
        header = self._read_header(self.HEADER_END, _TAG)
        if header is None:
            self._at -= len(_MARK)
            return False
        if not header:
            self._fail_stream()
        elif header[0]["end"]:
            self._close_element(header[0]["name"].strip())
        elif not self._stack and header[0]["name"].split()[:1] == ["invoke"]:
            # The call before it lacks its end.
            self._at -= len(f"{_MARK}{header[0].group()}>")
            self._end_stream()
        else:
            self._open_element(header[0]["name"].strip())
        return True

    def _open_element(self, name: str) -> None:
        assert self._call is not None
        self._state = self._text_of_element
        if not self._stack and self._call.schema(name).is_string and self._call.schema(name).declared:
            self._call.start_value(name)
            # Not cached: the model writes the name.
            self._end_of_string = Markers(*dict.fromkeys((f"{_MARK}</{name}>", f"{_MARK}</invoke>")))
            self._state = self._in_string
        else:
            self._depth = max(self._depth, len(self._stack) + 1) if self._stack else 1
            self._stack.append(_Element(name))

    def _in_string(self) -> bool:
        """State in an argument that can only be a string."""
        assert self._call is not None
        text, found = self._read_until(self._end_of_string)
        self._call.text(text)
        if found:
            self._call.end_value()
            self._state = self._text_of_element
            if found == f"{_MARK}</invoke>":
                self._at -= len(found)
        elif self._ended:
            self._fail_stream()
        return bool(found)

    def _close_element(self, name: str) -> None:
        assert self._call is not None
        self._state = self._text_of_element
        if not self._stack:
            if name == "tool_call":
                self._at -= len(f"{_MARK}</tool_call>")
            if name in ("invoke", "tool_call"):
                self._end_stream()
        elif name == self._stack[-1].name:
            element = self._stack.pop()
            if self._stack:
                self._stack[-1].children.append(element)
            elif self._depth <= _DEEPEST:
                self._call.value(element.name, _value(element, self._call.schema(element.name)))
        elif name == "invoke":
            self._stack.clear()
            self._end_stream()


def _value(element: _Element, schema: Schema) -> Any:
    text = "".join(element.texts)
    if not element.children:
        if not text.strip() and "string" not in schema.types:
            return [] if "array" in schema.types else {} if "object" in schema.types else converted(text, schema)
        return converted(text, schema)
    if "array" in schema.types:
        items = schema.items or Schema({})
        return [_value(child, items) for child in element.children]
    members: dict[str, Any] = {}
    for name in dict.fromkeys(child.name for child in element.children):
        same = [child for child in element.children if child.name == name]
        member = schema.member(name)
        several = member.items or Schema({}) if len(same) > 1 and "array" in member.types else member
        values = [_value(child, several) for child in same]
        members[name] = values[0] if len(values) == 1 else values
    if text.strip():
        key = "$text"
        while key in members:
            key = f"${key}"
        members[key] = text
    return members


WRITER = TagWriter(
    trigger=f"{_MARK}<tool_call>",
    markers=(_MARK, "<tool_call>", "</tool_call>"),
    before=f"{_MARK}<tool_call>\n",
    opening=f'{_MARK}<invoke name="',
    after_name='">',
    key=f"{_MARK}<",
    after_key=">",
    after_value=f"{_MARK}</{{name}}>",
    closing=f"{_MARK}</invoke>",
    after=f"\n{_MARK}</tool_call>",
    stops=(_MARK,),
)
