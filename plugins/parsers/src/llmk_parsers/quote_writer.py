"""Writes the calls of dialects that have markers for quotes: the other direction of ``gemma4``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmk.api import WrittenCall
from llmk_parsers.lark import allowed, json_value, quoted, separable
from llmk_parsers.marked_calls import CallMarks
from llmk_parsers.schema_values import Schema

_PLAIN_NAME = re.compile(r"[\w.$-]+")
_DEEPEST = 12
"""Nesting of a schema that is enforced."""
_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_ENFORCED = _LIMITS | {
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "minItems"),
    *("maxItems", "minLength", "maxLength"),
}
_NOTES = {
    *("title", "description", "default", "examples", "deprecated", "nullable"),
    *("$defs", "definitions", "$schema", "$id", "$comment"),
    *("contentEncoding", "contentMediaType"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteMarks(CallMarks):
    """The markers of a dialect: ``quote`` stands before and after a string."""

    quote: str


@dataclass(frozen=True, slots=True)
class QuoteWriter:
    """Follows :class:`llmk.api.CallWriter` for such a dialect."""

    marks: QuoteMarks
    trigger: str

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """See :meth:`llmk.api.CallWriter.render`."""
        end = self.marks.list_ends[0]
        return "".join(f"{self.marks.call}call:{call.name}{self._written(dict(call.arguments))}{end}" for call in calls)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """See :meth:`llmk.api.CallWriter.grammar`."""
        rules = _QuoteGrammar(self.marks.quote, marker(self.marks.quote))
        calls = [f"{quoted(tool['name'])} {rules.value(separable(tool), separable(tool))}" for tool in tools]
        call = f'{marker(self.marks.call)} "call:" ({" | ".join(calls)}) {marker(self.marks.list_ends[0])}'
        return "\n".join([f"start: call{'+' if many else ''}", f"call: {call}", *rules.lines])

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.marks.quote}{value}{self.marks.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self._name(name)}:{self._written(item)}" for name, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._written, value)) + "]"
        return json.dumps(value)

    def _name(self, name: str) -> str:
        return name if _PLAIN_NAME.fullmatch(name) else f"{self.marks.quote}{name}{self.marks.quote}"


@dataclass(slots=True)
class _QuoteGrammar:
    """Writes rules of values, which follow JSON schemas."""

    quote: str
    quote_term: str
    lines: list[str] = field(default_factory=list)

    def value(self, schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
        """The name of the rule of a value."""
        schema = schema if isinstance(schema, Mapping) else {}
        refused = sorted(schema.keys() - _ENFORCED - _NOTES)
        refused += ["items"] if isinstance(schema.get("items"), list) else []
        if refused or depth > _DEEPEST:
            found = repr(refused[0]) if refused else f"{min(schema, default='')!r}, nested deeper than {_DEEPEST},"
            raise ValueError(
                f"{found} can't be enforced in this model's dialect; remove it from the tool's schema, or use a tool "
                "that is not strict"
            )
        if isinstance(schema.get("$ref"), str):
            return self.value(Schema(schema, root).target, root, depth + 1)
        return self._rule("value", " | ".join(self._choices(schema, root, depth)))

    def _choices(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[str]:
        constants = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if constants is not None:
            return [self._constant(constant) for constant in constants]
        if "anyOf" in schema:
            return [self.value(choice, root, depth + 1) for choice in schema["anyOf"] if choice is not False]
        types = sorted(Schema(schema, root).types)
        if not Schema(schema, root).declared:
            return [self._anything()]
        return [self._typed(name, schema, root, depth) for name in types]

    def _typed(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        if name == "string":
            return self._string(schema.get("minLength", 0), schema.get("maxLength", ""))
        if name == "object":
            return self._object(schema, root, depth)
        if name == "array":
            return self._array(schema, root, depth)
        limits = {key: value for key, value in schema.items() if key in _LIMITS}
        return json_value({**limits, "type": name})

    def _string(self, shortest: int = 0, longest: int | str = "") -> str:
        text = f"/(?s:.{{{shortest},{longest}}})/ & ~/(?s:.*{re.escape(self.quote)}.*)/"
        terminal = f"TEXT_{len(self.lines)}"
        self.lines.append(f"{terminal}: {text}")
        if not self.quote_term.startswith('"'):
            return f"{self.quote_term} {terminal} {self.quote_term}"
        rule = f"text_{len(self.lines)}"
        self.lines.append(f"{rule}[suffix={self.quote_term}]: {terminal}")
        return f"{self.quote_term} {rule}"

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        properties = allowed(schema)
        if not properties and depth and schema.get("additionalProperties") is not False:
            further = schema.get("additionalProperties")
            return self._members(self.value(further, root, depth + 1) if further else self._anything())
        required = schema.get("required") or ()
        after = first = self._rule("end", '""')
        for name, value in reversed(properties.items()):
            pair = f'{self._name(name)} ":" {self.value(value, root, depth + 1)}'
            skipped = (f" | {first}", f" | {after}") if name not in required else ("", "")
            first, after = (
                self._rule("first", f"{pair} {after}{skipped[0]}"),
                self._rule("rest", f'"," {pair} {after}{skipped[1]}'),
            )
        return f'"{{" {first} "}}"'

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        item = self.value(schema["items"], root, depth + 1) if "items" in schema else self._anything()
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0 or schema.get("items") is False:
            return '"[" "]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}' if most != 1 else ""
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _anything(self) -> str:
        """The rule of any value."""
        if not any(line.startswith("anything:") for line in self.lines):
            self.lines.append("anything: scalar")
            kinds = f'{self._string()} | {self._members("anything")} | "[" (anything ("," anything)*)? "]"'
            position = self.lines.index("anything: scalar")
            self.lines[position] = f"anything: scalar | {kinds}"
            self.lines.append(f"scalar: {json_value({'type': ['number', 'boolean', 'null']})}")
        return "anything"

    def _members(self, value: str) -> str:
        pair = f'/[A-Za-z_][A-Za-z0-9_.-]*/ ":" {value}'
        return f'"{{" ({pair} ("," {pair})*)? "}}"'

    def _constant(self, value: Any) -> str:
        if not isinstance(value, str):
            return quoted(json.dumps(value))
        return f"{self.quote_term} {quoted(value) if value else ''} {self.quote_term}"

    def _name(self, name: str) -> str:
        return quoted(name) if _PLAIN_NAME.fullmatch(name) else self._constant(name)

    def _rule(self, kind: str, body: str) -> str:
        rule = f"{kind}_{len(self.lines)}"
        self.lines.append(f"{rule}: {body}")
        return rule
