"""Writes the calls of :mod:`llmk_harbor.pier_tool`'s dialect, and the grammar of those that fit a request's tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmk.api import CallWriter, RequestError, WrittenCall
from llmk_harbor.pier_tool import CLOSING, LONGEST_NAME, NAME, OPENING

_NOT_ENFORCED = (
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "enum"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)
"""Keywords of an object's schema that concern its options together, which stand in lines of their own here."""

_SHARED = ("$defs", "definitions")
_WORD = NAME.pattern.replace("/", "\\/")
_QUOTED = r'"([^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(0[0-7bef]|1[0-9a-f]))*"'
"""A name in quotes, each in one way only, so that a listed option has no second name."""


class CommandLineWriter(CallWriter):
    """Options in lines, calls without anything between them."""

    trigger = OPENING

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """Each call as the models of this dialect write it."""
        return "".join(map(_rendered, calls))

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """A rule for each tool, and one for each of its options, in the schema's order; then, where the schema allows
        further ones, any others."""
        rules = ["start: call+" if many else "start: call"]
        rules.append(
            f"call: {marker(OPENING)} ({' | '.join(f'tool_{at}' for at in range(len(tools)))}) {marker(CLOSING)}"
        )
        for at, tool in enumerate(tools):
            rules += _tool_rules(f"tool_{at}", tool)
        return "\n".join(rules) + "\n"


def _rendered(call: WrittenCall) -> str:
    lines = [f"{OPENING}{_checked(call.name)}\n"]
    lines += [f"--{_option(name)} {json.dumps(value, ensure_ascii=False)}\n" for name, value in call.arguments.items()]
    return "".join([*lines, CLOSING])


def _checked(name: str) -> str:
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise RequestError(f"this model's dialect has no tools named {name[:64]!r}: letters, digits and _.:/- only")
    return name


def _option(name: str) -> str:
    return name if NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _tool_rules(rule: str, tool: Mapping[str, Any]) -> Iterator[str]:
    schema = _object_schema(tool.get("parameters"))
    shared = {key: schema[key] for key in _SHARED if key in schema}
    required = schema.get("required") or []
    further = schema.get("additionalProperties", True)
    properties = dict(schema.get("properties") or {})
    properties |= {name: further for name in required if name not in properties}
    listed = {name: value for name, value in properties.items() if value is not False}
    if missing := [name for name in required if name not in listed]:
        raise RequestError(f"nothing fits a schema that requires {missing[0]!r} and excludes it", param="required")
    terms = [_text(f"{_checked(tool['name'])}\n")]
    options: list[str] = []
    end = _text("\n")
    for at, (name, value) in enumerate(listed.items()):
        terms.append(f"{rule}_{at}" if name in required else f"{rule}_{at}?")
        options.append(f"{rule}_{at}: {_text(f'--{_option(name)} ')} {_value(value, shared)} {end}")
    if further is not False:
        terms.append(f"{rule}_more*")
        options.append(f"{rule}_more: {rule.upper()}_MORE {_value(further, shared)} {end}")
        options.append(f"{rule.upper()}_MORE: {_other_options(properties)}")
    yield f"{rule}: {' '.join(terms)}"
    yield from options


def _object_schema(parameters: Any) -> Mapping[str, Any]:
    """The schema of a tool's arguments. One without parameters takes none."""
    if parameters is None:
        return {"additionalProperties": False}
    if parameters is True:
        return {}
    if not isinstance(parameters, Mapping):
        raise RequestError("parameters are not a JSON schema of an object", param="parameters")
    for keyword in _NOT_ENFORCED:
        if keyword in parameters:
            raise RequestError(f"{keyword!r} of a tool's parameters can't be enforced", param=keyword)
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise RequestError("a tool's parameters must be an object", param="type")
    return parameters


def _value(schema: Any, shared: Mapping[str, Any]) -> str:
    """The term of a value. References into what the whole schema shares go along; others would miss their target."""
    whole = {} if schema is True else schema
    if not isinstance(whole, Mapping):
        raise RequestError("an option's schema is not one", param="properties")
    if any(_references(whole)):
        whole = {**whole, **shared}
    for target in _references(whole):
        if not target.startswith(tuple(f"#/{key}/" for key in _SHARED)):
            raise RequestError(f"'$ref' to {target[:64]!r} can't be enforced", param="$ref")
    return f"%json {json.dumps(whole)}"


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(target := schema.get("$ref"), str):
            yield target
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _other_options(listed: Mapping[str, Any]) -> str:
    """Names that are not listed, in the one way in which each is written. With what is around them they are one
    terminal: a lexer that has read the start of a listed name doesn't go back."""
    names = f"(/{_WORD}/ | /{_QUOTED}/)"
    written = [each for name in listed for each in sorted({_option(name), json.dumps(name, ensure_ascii=False)})]
    others = f"({names} & ~({' | '.join(map(_text, written))}))" if written else names
    return f'"--" {others} " "'


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


WRITER = CommandLineWriter()
