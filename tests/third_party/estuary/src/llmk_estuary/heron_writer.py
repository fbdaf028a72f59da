"""Writes calls in the dialect of tables, and the grammar of those that a model may write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmk.api import RequestError, WrittenCall
from llmk_estuary.heron_tables import BARE_KEY, CLOSE, OPEN

_NOTES = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$comment")
)
_FOLLOWED = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_DEFINITIONS = ("$defs", "definitions")
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space in values: as Python's ``json.dumps`` writes it."""


class TableWriter:
    """Follows ``llmk.api.CallWriter``."""

    trigger = OPEN

    def render(self, calls: Sequence[WrittenCall]) -> str:
        """The calls, one behind the other: a line between them would be content."""
        return "".join(
            f"{OPEN}{call.name}]]\n{''.join(_line(*argument) for argument in call.arguments.items())}{CLOSE}"
            for call in calls
        )

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        """Arguments come in the order of their schema, and no others than it names."""
        names = " | ".join(f"call_{index}" for index in range(len(tools)))
        rules = [f"start: {'call+' if many else 'call'}", f"call: {names}"]
        for index, tool in enumerate(tools):
            arguments = _arguments(tool.get("parameters"))
            parts = [marker(OPEN), _quoted(f"{tool['name']}]]\n")]
            for at, (key, (schema, required)) in enumerate(arguments.items()):
                rule = f"argument_{index}_{at}"
                parts.append(rule if required else f"{rule}?")
                rules.append(f'{rule}: {_quoted(f"{_key(key)} = ")} value_{index}_{at} "\\n"')
                rules.append(f"value_{index}_{at}: %json {json.dumps(schema)}")
            rules.append(f"call_{index}: {' '.join([*parts, marker(CLOSE)])}")
        return "\n".join(rules) + "\n"


WRITER = TableWriter()


def _line(key: str, value: object) -> str:
    return f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}\n"


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _quoted(text: str) -> str:
    """A text as a string of the grammar."""
    return json.dumps(text, ensure_ascii=False)


def _arguments(parameters: Mapping[str, Any] | bool | None) -> dict[str, tuple[dict[str, Any], bool]]:
    """The arguments of a tool, in order: their schemas, each by itself, and whether they must be there."""
    if parameters is None or parameters is True:
        return {}
    if parameters is False:
        raise _refused("false")
    for keyword in parameters:
        if keyword not in _NOTES and keyword not in _FOLLOWED:
            raise _refused(keyword)
    types = parameters.get("type", "object")
    if "object" not in ([types] if isinstance(types, str) else types):
        raise _refused("type")
    further = parameters.get("additionalProperties", True)
    if not (isinstance(further, bool) or further == {}):
        raise _refused("additionalProperties")
    definitions = {name: parameters[name] for name in _DEFINITIONS if name in parameters}
    _check_references(definitions)
    required = dict.fromkeys(parameters.get("required", ()))
    properties = dict(parameters.get("properties", {}))
    if further is not False:
        properties |= {name: True for name in required if name not in properties}
    missing = [name for name in required if properties.get(name, False) is False]
    if missing:
        raise _refused("required")
    return {
        name: (_alone(schema, definitions), name in required)
        for name, schema in properties.items()
        if schema is not False
    }


def _alone(schema: Mapping[str, Any] | bool, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A property's schema as a document of its own."""
    alone = {} if schema is True else dict(schema)  # type: ignore[arg-type]
    _check_references(alone)
    return {**alone, **definitions, "x-guidance": _SPACES}


def _check_references(schema: object) -> None:
    """Refuses references to what is not among the definitions: in a document of its own, they mean something else."""
    pending = [schema]
    while pending:
        each = pending.pop()
        if isinstance(each, Mapping):
            target = each.get("$ref")
            if isinstance(target, str) and not target.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)):
                raise _refused("$ref")
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += each


def _refused(keyword: str) -> RequestError:
    return RequestError(f"the parameters of a tool have {keyword!r}, which the dialect heron.tables can't enforce")
