"""The dialect of Qwen-Agent's function calls, whose markers stand between flowers:

    ✿FUNCTION✿: get_weather
    ✿ARGS✿: {"city": "Oslo"}

Calls follow each other on lines of their own. Arguments are passed on while they are written. ``✿RESULT✿``, with which
a prompt goes on, is a stop text of the template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import (
    Event,
    ParserContext,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStart,
    WrittenCall,
)
from llmk_lagoon.stork_json import JsonObject

FUNCTION, ARGS = "✿FUNCTION✿", "✿ARGS✿"
_OPEN = f"{FUNCTION}: "
_MIDDLE = f"\n{ARGS}: "
_NAME = re.compile(r"[\w.:/-]{0,256}")
_NOTES = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly"} | {
    *("writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
}
"""Keywords of schemas that enforce nothing."""
_TOGETHER = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", *_NOTES}
"""Keywords that the grammar follows in the schema of all arguments together."""
_CHOICES = ("anyOf", "allOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_SIZES = {"minItems", "maxItems", "minLength", "maxLength", "pattern", "format"}
_VALUE = {*_TOGETHER, *_CHOICES, *_NAMED, *_NUMBERS, *_SIZES, "$ref", "enum", "const", "items"}
"""Keywords that it follows in the schema of a value."""


class Flowers:
    """Follows ``llmk.api.ToolParser``. What can't become a call any more is text at once."""

    def __init__(self, context: ParserContext) -> None:
        self._held = ""
        """The start of what may become a call, up to its arguments."""
        self._arguments: JsonObject | None = None
        self._written: list[str] = []
        """The open call, in pieces."""
        self._index = 0
        self._ended = False
        """Whether a call ended here, so that a line break belongs to it."""

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of content; returns the events that are now certain."""
        text, self._held = self._held + text, ""
        events: list[Event] = []
        at = 0
        while at < len(text):
            if self._arguments is not None:
                at = self._read_arguments(self._arguments, text, at, events)
            else:
                if self._ended and text[at] == "\n":
                    at += 1
                self._ended = False
                at = self._read_text(text, at, events)
        return events

    def finish(self) -> list[Event]:
        """At the end of the text: a call that is not complete is text."""
        if self._arguments is not None:
            return [self._fail()]
        held, self._held = self._held, ""
        return [TextDelta(held)] if held else []

    def _read_text(self, text: str, at: int, events: list[Event]) -> int:
        """Reads text up to the arguments of a call. Returns where to go on."""
        start = at
        while (found := text.find(_OPEN[0], at)) >= 0:
            name = _NAME.match(text, found + len(_OPEN)) if text.startswith(_OPEN, found) else None
            if name and name.group() and text.startswith(_MIDDLE + "{", name.end()):
                _add_text(text[start:found], events)
                end = name.end() + len(_MIDDLE)
                events.append(ToolCallStart(self._index, name.group()))
                self._arguments, self._written = JsonObject(), [text[found:end]]
                return end
            if self._may_become_call(text, found, name):
                self._held = text[found:]
                break
            at = found + 1
        _add_text(text[start : len(text) - len(self._held)], events)
        return len(text)

    def _may_become_call(self, text: str, found: int, name: re.Match[str] | None) -> bool:
        """Whether the rest of ``text`` is the start of a call, which is not there yet."""
        left = len(text) - found
        if name is None:
            return left < len(_OPEN) and _OPEN.startswith(text[found:])
        after = len(text) - name.end()
        if not name.group() or after > len(_MIDDLE):
            return not after
        return _MIDDLE.startswith(text[name.end() :])

    def _read_arguments(self, arguments: JsonObject, text: str, at: int, events: list[Event]) -> int:
        """Reads arguments up to their end, or to what can't be a part of them. Returns where to go on."""
        end = arguments.feed(text, at)
        if end > at:
            self._written.append(text[at:end])
            events.append(ToolCallArguments(self._index, text[at:end]))
        if arguments.failed:
            events.append(self._fail())
        elif arguments.done:
            events.append(ToolCallEnd(self._index))
            self._close()
            self._ended = True
        return end

    def _fail(self) -> ToolCallFailed:
        failed = ToolCallFailed(self._index, "".join(self._written))
        self._close()
        return failed

    def _close(self) -> None:
        self._arguments, self._written = None, []
        self._index += 1


class FlowersWriter:
    """Follows ``llmk.api.CallWriter``."""

    trigger = _OPEN

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """The calls, each on two lines."""
        return "\n".join(
            f"{_OPEN}{call.name}{_MIDDLE}{json.dumps(call.arguments, ensure_ascii=False)}" for call in calls
        )

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """One call, or one and more. Arguments are JSON on one line, as ``render`` writes them."""
        rules = [r'start: call ("\n" call)*' if many else "start: call"]
        rules.append(f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}")
        for number, tool in enumerate(tools):
            schema = _arguments_schema(tool.get("parameters") or {})
            name = json.dumps(f": {tool['name']}\n", ensure_ascii=False)
            rules.append(f'call_{number}: {marker(FUNCTION)} {name} {marker(ARGS)} ": " args_{number}')
            rules.append(f"args_{number}: %json {json.dumps(schema)}")
        return "\n".join(rules) + "\n"


def _arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of all arguments together, which allows none that it does not list. Raises ValueError for what can't
    be enforced."""
    _refuse_others(schema, _TOGETHER)
    if schema.get("type", "object") != "object" and "object" not in schema["type"]:
        raise ValueError(f"type: arguments are an object, not {schema['type']}")
    for value in (*_named(schema), schema.get("additionalProperties", True)):
        _check_value(value)
    listed, required = schema.get("properties", {}), list(schema.get("required", ()))
    unlisted = dict.fromkeys(required, schema.get("additionalProperties", True))
    return {
        **{name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema},
        "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
        "type": "object",
        "properties": {**listed, **{name: value for name, value in unlisted.items() if name not in listed}},
        "required": required,
        "additionalProperties": False,
    }


def _check_value(schema: Any) -> None:
    """Raises ValueError for a keyword, in a value's schema, that the grammar would not follow."""
    if isinstance(schema, bool):
        return
    _refuse_others(schema, _VALUE)
    for value in (*_named(schema), *(value for name in _CHOICES for value in schema.get(name, ()))):
        _check_value(value)
    for name in ("items", "additionalProperties"):
        if name in schema:
            _check_value(schema[name])


def _named(schema: Mapping[str, Any]) -> list[Any]:
    return [value for name in _NAMED for value in schema.get(name, {}).values()]


def _refuse_others(schema: Any, known: set[str]) -> None:
    if not isinstance(schema, Mapping):
        raise ValueError(f"items: a schema can't be {schema!r}")
    if others := sorted(schema.keys() - known):
        raise ValueError(f"{', '.join(map(repr, others))} can't be enforced")


def _add_text(text: str, events: list[Event]) -> None:
    if text:
        events.append(TextDelta(text))


WRITER = FlowersWriter()
