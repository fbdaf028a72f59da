"""Tool calls in lines: ``@call name``, then ``@arg key`` and its JSON in the next line, then ``@end``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import Event, ParserContext, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart, WrittenCall
from llmk_orchard.pieces import in_short_pieces

OPEN, ARGUMENT, CLOSE = "@call ", "@arg ", "@end"


class Leaves:
    """Text is passed on at once, but for a tail that may become a marker; a call when it is complete. A call that is
    none, or has no end, is text."""

    def __init__(self, context: ParserContext) -> None:
        self._text = ""
        self._lines: list[str] | None = None
        """Lines of the open call, of which the last may be incomplete."""
        self._count = 0

    @in_short_pieces
    def push(self, text: str) -> list[Event]:
        """Takes the next piece."""
        self._text += text
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """What is left is a call if its last line ends it, else text."""
        events: list[Event] = []
        if self._lines is not None and self._text == CLOSE:
            lines, self._lines, self._text = self._lines, None, ""
            return self._ended(lines, "")
        held = self._text if self._lines is None else "".join([*self._lines, self._text])
        self._text, self._lines = "", None
        return [*events, *_text(held)]

    def _step(self, events: list[Event]) -> bool:
        if self._lines is None:
            start = self._text.find(OPEN)
            if start >= 0:
                events += _text(self._text[:start])
                self._text, self._lines = self._text[start:], []
                return True
            kept = next((size for size in range(len(OPEN) - 1, 0, -1) if self._text.endswith(OPEN[:size])), 0)
            certain, self._text = self._text[: len(self._text) - kept], self._text[len(self._text) - kept :]
            events += _text(certain)
            return False
        line, newline, rest = self._text.partition("\n")
        if not newline:
            return False
        self._text = rest
        if line == CLOSE:
            lines, self._lines = self._lines, None
            events += self._ended(lines, newline)
        else:
            self._lines.append(line + newline)
            if len(self._lines) % 2 == 0 and not line.startswith(ARGUMENT):
                # No call goes on so: what was read is text, and this line may start another one.
                events += _text("".join(self._lines[:-1]))
                self._text, self._lines = self._lines[-1] + self._text, None
        return True

    def _ended(self, lines: list[str], newline: str) -> list[Event]:
        name = lines[0].removeprefix(OPEN).strip()
        arguments: dict[str, Any] = {}
        try:
            for at in range(1, len(lines), 2):
                key = lines[at].removeprefix(ARGUMENT).removesuffix("\n")
                arguments[key] = json.loads(lines[at + 1], parse_constant=_refuse, parse_float=_number)
        except (ValueError, IndexError, RecursionError):
            name = ""
        if not name:
            return _text("".join([*lines, CLOSE, newline]))
        index, self._count = self._count, self._count + 1
        text = json.dumps(arguments)
        return [ToolCallStart(index, name), ToolCallArguments(index, text), ToolCallEnd(index)]


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


def _text(text: str) -> list[Event]:
    return [TextDelta(text)] if text else []


class LeavesWriter:
    """Writes calls, and the grammar of those that a model may write."""

    trigger = OPEN

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """One call after the other."""
        return "\n".join(self._call(call) for call in calls)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """Arguments in the order of the schema; those that are not required may be left out."""
        rules = [r'start: one ("\n" one)*' if many else "start: one"]
        rules.append("one: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        for number, tool in enumerate(tools):
            schema = tool.get("parameters") or {}
            _separable(schema)
            required, definitions = schema.get("required", ()), schema.get("$defs", {})
            parts = [json.dumps(f"{OPEN}{tool['name']}\n")]
            for at, (key, value) in enumerate(schema.get("properties", {}).items()):
                rule = f"call_{number}_{at}"
                options = {"x-guidance": {"whitespace_pattern": " ?"}}
                wanted = value if isinstance(value, Mapping) else {} if value else {"not": {}}
                json_text = json.dumps({**wanted, "$defs": definitions, **options})
                rules.append(f'{rule}: {json.dumps(f"{ARGUMENT}{key}" + chr(10))} %json {json_text} "\\n"')
                parts.append(rule if key in required else f"{rule}?")
            rules.append(f"call_{number}: {' '.join([*parts, json.dumps(CLOSE)])}")
        return "\n".join(rules)

    def _call(self, call: WrittenCall) -> str:
        lines = [f"{OPEN}{call.name}"]
        for key, value in call.arguments.items():
            lines += [f"{ARGUMENT}{key}", json.dumps(value, ensure_ascii=False)]
        return "\n".join([*lines, CLOSE])


def _separable(schema: Mapping[str, Any]) -> None:
    """Refuses what concerns several arguments, which stand apart."""
    for keyword in _TOGETHER:
        if keyword in schema:
            raise ValueError(f"{keyword!r} of all arguments can't be enforced in this dialect")
    for name in schema.get("required") or ():
        if name not in (schema.get("properties") or {}):
            raise ValueError(f"an argument that is 'required', {name!r}, is not listed")


_TOGETHER = (
    *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "enum"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)

WRITER = LeavesWriter()
