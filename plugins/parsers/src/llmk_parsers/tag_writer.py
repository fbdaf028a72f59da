"""Writes the calls of dialects whose arguments stand in tags of their own: the other direction of ``tag_calls``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmk.api import WrittenCall
from llmk_parsers.lark import allowed, json_value, quoted, separable, terms
from llmk_parsers.schema_values import JSON_TYPES, Schema, type_of

_UNENFORCED = ("pattern", "format", "not", "if", "allOf", "oneOf")
_STARTS = {"integer": "-+.0-9", "number": "-+.0-9", "object": '{\\[\\"', "array": '{\\[\\"'}
"""How text starts that is read as this type, where the schema has it and strings: it is written as JSON, and no other
text may start so."""
_PLACEHOLDER = re.compile(r"(\{(?:number|type)\})")
_PLACEHOLDERS = {"{number}": "/[1-9][0-9]?/", "{type}": "/number|boolean|null|object|array/"}


@dataclass(slots=True, kw_only=True)
class TagWriter:
    """Follows :class:`llmk.api.CallWriter`.

    Calls are written as ``before``, the calls with ``separator`` in between, and ``after``; a call as ``opening``, its
    name, ``after_name``, its arguments and ``closing``; an argument as ``key``, its name, ``after_key``, its text (of a
    string; of another value its JSON) and ``after_value``, in which ``{name}`` stands for its name. ``text_attribute``
    and ``json_attribute`` replace ``after_key`` in dialects that mark strings. In ``after_name``, ``{number}`` stands
    for the call's number, from 1, and in ``json_attribute``, ``{type}`` for the value's type. No text of a string may
    contain one of ``stops``.
    """

    trigger: str
    markers: Sequence[str] = ()
    """The parts of these texts that may be special tokens."""
    before: str = ""
    opening: str
    after_name: str
    key: str
    after_key: str
    text_attribute: str = ""
    json_attribute: str = ""
    after_value: str
    closing: str
    separator: str = "\n"
    after: str = ""
    stops: Sequence[str]

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """See :meth:`llmk.api.CallWriter.render`. Raises ``ValueError`` as :meth:`grammar` does for names."""
        written = [self._call(call, number) for number, call in enumerate(calls, 1)]
        return self.before + self.separator.join(written) + self.after

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """See :meth:`llmk.api.CallWriter.grammar`. Raises ``ValueError`` for a keyword that can't be enforced for the
        text of a string or for all arguments together, and for the name of an argument that can't be read back."""

        def term(text: str) -> str:
            """The terms of ``text``, and between its parts that of a placeholder."""
            parts = _PLACEHOLDER.split(text)
            return " ".join(_PLACEHOLDERS.get(part) or terms(part, self.markers, marker) for part in parts if part)

        more = f"({term(self.separator)} call)*" if many else ""
        rules = [
            f"start: {term(self.before)} call {more} {term(self.after)}",
            f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}",
        ]
        for number, tool in enumerate(tools):
            schema = separable(tool)
            arguments = []
            for position, (name, value) in enumerate(allowed(schema).items()):
                rule = f"argument_{number}_{position}"
                arguments.append(rule if name in (schema.get("required") or ()) else f"{rule}?")
                rules += self._argument(rule, name, value, schema, term)
            name_terms = f"{term(self.opening)} {quoted(tool['name'])} {term(self.after_name)}"
            rules.append(f"call_{number}: {name_terms} {' '.join(arguments)} {term(self.closing)}")
        return "\n".join(rules)

    def _argument(
        self, rule: str, name: str, value: Mapping[str, Any], root: Mapping[str, Any], term: Callable[[str], str]
    ) -> list[str]:
        """The rules of one argument."""
        self._check(name)
        value = _resolved(value, root)
        if self.json_attribute and not Schema(value, root).declared:
            value = {**value, "type": sorted(JSON_TYPES)}
        types = Schema(value, root).types
        start = f"{term(self.key)} {quoted(name)}"
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        after = self.after_value.replace("{name}", name)
        whole = f"{term(self.json_attribute or self.after_key)} {rule}_json {term(after)}"
        text = f"{term(self.text_attribute or self.after_key)} {rule}_text"
        if "string" not in types:
            return [f"{rule}: {start} {whole}", f"{rule}_json: {json_value({**value, **definitions})}"]
        bodies = f"{start} {text} {term(after)}", f"{start} {whole}"
        if (choices := _constants(value)) is not None:
            return self._choices(rule, choices, bodies)
        part = _string_part(value, root)
        others = types - {"string"}
        starts = "" if self.json_attribute else "".join(sorted({_STARTS[name] for name in others & _STARTS.keys()}))
        if (choices := _constants(part)) is not None:
            rules = self._choices(rule, [choice for choice in choices if isinstance(choice, str)], bodies)
        else:
            rules = [f"{rule}: {start} {text}", *self._text(f"{rule}_text", part, starts, term(after))]
        if others:
            rules[0] += f" | {start} {whole}"
            rules.append(f"{rule}_json: {json_value({**_part(value, others), **definitions})}")
        return rules

    @staticmethod
    def _choices(rule: str, choices: Sequence[Any], bodies: tuple[str, str]) -> list[str]:
        """The rules of an argument with one of these values. ``bodies``: with a text, and with JSON."""
        texts = [choice for choice in choices if isinstance(choice, str)]
        others = [choice for choice in choices if not isinstance(choice, str)]
        used = [body for body, some in zip(bodies, (texts, others), strict=True) if some]
        rules = [f"{rule}: {' | '.join(used)}"]
        if texts:
            rules.append(f"{rule}_text: {' | '.join(map(quoted, texts))}")
        return [*rules, f"{rule}_json: {json_value({'enum': others})}"] if others else rules

    def _text(self, rule: str, value: Mapping[str, Any], starts: str, end: str) -> list[str]:
        """The rules of a string's text, which may not start with one of ``starts``, and of the terms ``end``."""
        refused = [keyword for keyword in _UNENFORCED if keyword in value]
        if refused:
            raise ValueError(
                f"{refused[0]!r} of a string argument can't be enforced in this model's dialect, which writes strings "
                "as plain text; remove it from the tool's schema, or use a tool that is not strict"
            )
        size = f"{{{value.get('minLength', 0)},{value.get('maxLength', '')}}}"
        wanted = [f"/(?s:.{size})/"]
        outside = "|".join(re.escape(stop) for stop in self.stops)
        wanted.append(f"~/(?s:.*({_slashed(outside)}).*)/")
        if starts:
            wanted.append(f"~/(?s:\\s*[{starts}].*)/")
        terminal = rule.upper()
        lines = [f"{terminal}: {' & '.join(wanted)}"]
        literal, rest = _literal_start(end)
        if not literal:
            return [f"{rule}: {terminal} {rest}", *lines]
        if rest:
            # The special token that follows ends the text, whose own "</" is no end.
            return [f"{rule}: {terminal}_END {rest}", f"{terminal}_END: {terminal} {quoted(literal)}", *lines]
        return [f"{rule}[suffix={quoted(literal)}]: {terminal}", *lines]

    def _call(self, call: WrittenCall, number: int) -> str:
        arguments = "".join(self._written(name, value) for name, value in call.arguments.items())
        after_name = self.after_name.replace("{number}", str(number))
        return f"{self.opening}{call.name}{after_name}{arguments}{self.closing}"

    def _check(self, name: str) -> None:
        """Refuses an argument whose name would end before its end."""
        end = (self.after_key or self.text_attribute)[:1]
        if end in name:
            raise ValueError(
                f"the argument {name!r} can't be written in this model's dialect, where {end!r} ends a name: rename it"
            )

    def _written(self, name: str, value: Any) -> str:
        self._check(name)
        after = self.after_value.replace("{name}", name)
        if isinstance(value, str):
            return f"{self.key}{name}{self.text_attribute or self.after_key}{value}{after}"
        text = json.dumps(value, ensure_ascii=False)
        if any(stop in text for stop in self.stops):
            text = text.replace("<", "\\u003c")
        before = (self.json_attribute or self.after_key).replace("{type}", type_of(value).replace("integer", "number"))
        return f"{self.key}{name}{before}{text}{after}"


def _slashed(pattern: str) -> str:
    return pattern.replace("/", "\\/")


def _literal_start(terms: str) -> tuple[str, str]:
    """The quoted strings at the start of ``terms``, joined, and the terms that follow."""
    literal, rest = "", terms.strip()
    while rest.startswith('"'):
        text, size = json.JSONDecoder().raw_decode(rest)
        literal, rest = literal + text, rest[size:].strip()
    return literal, rest


def _resolved(given: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, with what its reference names."""
    schema: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    if not isinstance(schema.get("$ref"), str):
        return schema
    target = Schema(schema, root).target
    others = {key: value for key, value in schema.items() if key != "$ref"}
    return {**(target if isinstance(target, Mapping) else {}), **others}


def _constants(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """The values that the schema lists, if it does."""
    constants: Sequence[Any] | None = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return constants


def _string_part(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the schema says of strings. Raises ``ValueError`` if several of its choices do."""
    choices = [_resolved(choice, root) for choice in schema.get("anyOf") or ()]
    strings = [choice for choice in choices if "string" in Schema(choice, root).types]
    if not any(choice.keys() - {"type"} for choice in strings):
        return schema
    if len(strings) > 1:
        raise ValueError(
            "'anyOf' of several strings can't be enforced in this model's dialect, which writes strings as plain text; "
            "list their values in one 'enum', or use a tool that is not strict"
        )
    return strings[0]


def _part(schema: Mapping[str, Any], types: frozenset[str]) -> dict[str, Any]:
    """The schema of the values of ``types``."""
    kept = dict(schema)
    if isinstance(kept.get("type"), list):
        kept["type"] = [name for name in kept["type"] if name in types]
    if isinstance(kept.get("enum"), list):
        kept["enum"] = [value for value in kept["enum"] if type_of(value) in types]
    if isinstance(kept.get("anyOf"), list):
        kept["anyOf"] = [_part(choice, types) for choice in kept["anyOf"] if Schema(choice, schema).types & types]
    return kept
