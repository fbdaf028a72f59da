"""Values of arguments that a model wrote as text, converted by the JSON schema of their tool."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_HALF = re.compile("[\ud800-\udfff]")
_DIALECT_TYPES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict", "map"), "object"),
    **dict.fromkeys(("arr", "list", "sequence", "tuple"), "array"),
}
"""Types of tool definitions that are not JSON schema's, but common."""
_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)
JSON_TYPES = frozenset(name for _, name in _JSON_TYPES)
_MOST_PARTS = 64
"""Of one schema, by references and combinations; more are not looked at."""
_DEEPEST = 100
"""Nesting of a value; a deeper one stays text."""
_LONGEST_NUMBER = 400
INVALID = object()
"""Not JSON."""
_STRING = frozenset({"string"})


def type_of(value: Any) -> str:
    """The JSON type of a Python value."""
    return next(name for kind, name in _JSON_TYPES if isinstance(value, kind))


class Schema:
    """A JSON schema, of which only the types matter here. ``root`` resolves its references."""

    def __init__(self, schema: Any, root: Mapping[str, Any] | None = None) -> None:
        self._root: Mapping[str, Any] = root if root is not None else schema if isinstance(schema, Mapping) else {}
        self._parts = self._resolved(schema)
        types = frozenset(self._types())
        self.declared = bool(types)
        """Whether the schema says what a value may be."""
        self.types = types or _STRING
        """What a value may be; a string if the schema doesn't say."""

    @property
    def target(self) -> Any:
        """The schema that a reference names."""
        return self._parts[1] if len(self._parts) > 1 else {}

    @property
    def is_string(self) -> bool:
        """Whether a value can only be a string, so that its text need not be complete to know its type."""
        return self.types == _STRING

    @property
    def names(self) -> frozenset[str]:
        """The names of an object's properties."""
        return frozenset(name for part in self._parts for name in _mapping(part.get("properties")))

    @property
    def required(self) -> frozenset[str]:
        """The names of the properties that an object must have."""
        listed = (name for part in self._parts for name in _sequence(part.get("required")))
        return frozenset(name for name in listed if isinstance(name, str))

    def member(self, name: str) -> Schema:
        """The schema of an object's property, of a string if there is none."""
        for part in self._parts:
            properties = _mapping(part.get("properties"))
            if name in properties:
                return Schema(properties[name], self._root)
        for part in self._parts:
            if isinstance(part.get("additionalProperties"), Mapping):
                return Schema(part["additionalProperties"], self._root)
        return Schema({}, self._root)

    @property
    def items(self) -> Schema | None:
        """The schema of an array's items."""
        for part in self._parts:
            if isinstance(part.get("items"), Mapping):
                return Schema(part["items"], self._root)
        return None

    def _resolved(self, schema: Any) -> list[Mapping[str, Any]]:
        """The schema and those that it combines, outermost first."""
        parts: list[Mapping[str, Any]] = []
        waiting = [schema]
        while waiting and len(parts) < _MOST_PARTS:
            part = waiting.pop()
            if not isinstance(part, Mapping):
                continue
            parts.append(part)
            if isinstance(part.get("$ref"), str):
                waiting.append(self._target(part["$ref"]))
            choices = [choice for name in ("allOf", "oneOf", "anyOf") for choice in _sequence(part.get(name))]
            waiting.extend(choices[_MOST_PARTS::-1])
        return parts

    def _target(self, reference: str) -> Any:
        found: Any = self._root if reference.startswith("#") else None
        for step in reference.lstrip("#").strip("/").split("/"):
            found = _mapping(found).get(step.replace("~1", "/").replace("~0", "~")) if step else found
        return found

    def _types(self) -> Iterator[str]:
        for part in self._parts:
            declared = part.get("type")
            for name in [declared] if isinstance(declared, str) else _sequence(declared):
                name = str(name).strip().lower()
                yield _DIALECT_TYPES.get(name, name)
            if declared is None:
                constants = [part["const"]] if "const" in part else []
                yield from map(type_of, [*constants, *_sequence(part.get("enum"))])
                if "properties" in part:
                    yield "object"
                if "items" in part:
                    yield "array"
            if part.get("nullable") is True:
                yield "null"


def tool_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Schema]:
    """The schemas of the arguments of OpenAI function objects, by name."""
    return {str(tool.get("name")): Schema(tool.get("parameters") or {}) for tool in tools}


def converted(text: str, schema: Schema) -> Any:
    """The value that ``text`` stands for: of the first type of the schema as which it can be read, in the order null,
    integer, number, boolean, object or array, string; else as JSON; else the text. Raises nothing."""
    stripped, types = text.strip(), schema.types
    if "null" in types and stripped.lower() == "null":
        return None
    if "integer" in types and _INTEGER.fullmatch(stripped) and len(stripped) < _LONGEST_NUMBER:
        return int(stripped)
    if "number" in types and (number := _number(stripped)) is not None:
        return number
    if "boolean" in types and stripped.lower() in ("true", "false", "1", "0"):
        return stripped.lower() in ("true", "1")
    if types & {"object", "array"} and stripped[:1] in ("{", "[", '"') and (value := parsed(stripped)) is not INVALID:
        return fitted(value, schema)
    if "string" in types:
        return text
    value = parsed(stripped)
    return text if value is INVALID else value


def decoded(text: str, schema: Schema) -> Any:
    """The value of ``text``, which its author declared to be JSON; if it is not, see :func:`converted`."""
    value = parsed(text.strip())
    if value is INVALID or (schema.declared and schema.is_string and not isinstance(value, str)):
        return converted(text, schema)
    return fitted(value, schema)


def fitted(value: Any, schema: Schema) -> Any:
    """``value`` with strings inside of it converted where the schema wants something else."""
    if not schema.declared:
        return value
    if isinstance(value, str):
        return value if "string" in schema.types else converted(value, Schema({"type": sorted(schema.types)}))
    if isinstance(value, dict):
        return {name: fitted(item, schema.member(name)) for name, item in value.items()}
    items = schema.items if isinstance(value, list) else None
    return value if items is None else [fitted(item, items) for item in value]


def parsed(text: str) -> Any:
    """The value of a JSON text, not nested deeper than values may be."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return INVALID
    return value if _depth(value) <= _DEEPEST else INVALID


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > _DEEPEST:
            break
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
    return depth


def written(value: Any) -> str:
    """The JSON text of a value. Halves of characters, which can't be sent, are escaped."""
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(value, ensure_ascii=False))


def escaped(text: str) -> str:
    """``text`` as it is written inside a JSON string."""
    return written(text)[1:-1]


def _number(text: str) -> int | float | None:
    if len(text) >= _LONGEST_NUMBER or "_" in text:
        return None
    value = parsed(text) if _NUMBER.fullmatch(text) else INVALID
    if isinstance(value, (int, float)):
        return value
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
