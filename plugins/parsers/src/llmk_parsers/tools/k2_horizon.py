"""Tool calls of K2 Horizon: pairs of keys and values, with types or not, or JSON objects."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from llmk.api import ParserContext
from llmk_parsers.json_value import JsonValue
from llmk_parsers.marked_calls import CallMarks, MarkedCalls
from llmk_parsers.schema_values import fitted, parsed
from llmk_parsers.tag_calls import ANYTHING, PLAIN, PLAIN_SO_FAR, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter

_LIST, _LIST_END = "<ifm|tool_calls>", "</ifm|tool_calls>"
_CALL, _CALL_END = "<ifm|tool_call>", "</ifm|tool_call>"
_VALUE = "<ifm|arg_value>"
WRITER = TagWriter(
    trigger=_LIST,
    markers=(
        *(_LIST, _LIST_END, _CALL, _CALL_END),
        *("<ifm|arg_key>", "</ifm|arg_key>", _VALUE, "</ifm|arg_value>"),
    ),
    before=_LIST,
    opening=_CALL,
    after_name="\n",
    key="<ifm|arg_key>",
    after_key=f"</ifm|arg_key>\n{_VALUE}",
    after_value="</ifm|arg_value>\n",
    closing=_CALL_END,
    after=_LIST_END,
    stops=("</ifm|arg_value>", _CALL_END),
)

_PAIRS = Tags(
    lists=(_LIST,),
    list_ends=(_LIST_END,),
    unknown="text",
    call=_CALL,
    name=PLAIN,
    name_so_far=PLAIN_SO_FAR,
    name_end="<ifm|arg_key>",
    call_end=_CALL_END,
    key="<ifm|arg_key>",
    key_name=ANYTHING,
    key_end="</ifm|arg_key>",
    value=_VALUE,
    value_end="</ifm|arg_value>",
    value_stops=(_CALL_END,),
)
_TYPED_KEY = re.compile(
    r"\s*(?P<name>\S[^<]*?)\s*</ifm\|arg_key>\s*<ifm\|arg_type>\s*(?P<type>\w*)[^<]*</ifm\|arg_type>\s*"
)


class _Pairs(TagCalls):
    """Keys and values. A line break after the name and between pairs is optional."""

    MARKS = _PAIRS


class _TypedPairs(TagCalls):
    """Keys, their types, and values."""

    MARKS = replace(_PAIRS, key_name=_TYPED_KEY, key_end=_VALUE, value="")


class _Objects(MarkedCalls):
    """Objects, whose arguments get the types of the tool's schema, as values of pairs do."""

    MARKS = CallMarks(lists=(_LIST,), list_ends=(_LIST_END,), call=_CALL, unknown="text")

    _value: JsonValue
    """Of the open call."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._body: list[str] = []

    def _name(self) -> bool:
        self._value, self._body = JsonValue(), []
        self._state = self._in_value
        return True

    def _in_value(self) -> bool:
        if not self._body:
            self._skip_space()
        if self._at < len(self._text):
            start = self._at
            self._at = self._value.feed(self._text, start)
            self._body.append(self._text[start : self._at])
        if self._value.complete:
            self._call_of(parsed("".join(self._body)))
        elif self._value.stopped or self._ended:
            self._no_call()
        else:
            return False
        return True

    def _call_of(self, value: Any) -> None:
        """What was read is a call, or text."""
        arguments = value.get("arguments", {}) if isinstance(value, dict) else None
        if not isinstance(arguments, dict) or not isinstance(value.get("name"), str):
            self._no_call()
        elif call := self._named(value["name"]):
            for key, argument in arguments.items():
                call.value(key, fitted(argument, call.schema(key)))
            self._state = self._after_value

    def _after_value(self) -> bool:
        self._skip_space()
        marker = self._next_is(_CALL_END)
        if marker is None:
            return False
        self._at += len(marker)
        self._end_stream()
        return True


_FORMATS: dict[Any, type[MarkedCalls]] = {"json": _Objects, "xml_typed": _TypedPairs}


def k2_horizon(context: ParserContext) -> MarkedCalls:
    """The parser of the format that the option ``tool_call_format`` of the template names."""
    return _FORMATS.get(context.template_options.get("tool_call_format"), _Pairs)(context)
