"""Terms of llguidance's variant of Lark (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_JSON_OPTIONS = {"lenient": False, "whitespace_pattern": r"[ \n\r\t]{0,64}"}
"""What can't be enforced is refused; without a bound on white space, a model may write nothing else."""

_TOGETHER = (
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "enum"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)
"""Keywords that concern all properties of an object together."""


def quoted(text: str) -> str:
    """The term of a text, which may not be empty."""
    return json.dumps(text)


def json_value(schema: Mapping[str, Any]) -> str:
    """The term of a JSON value that follows ``schema``, of the tool's author, who may not set options."""
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS})}"


def parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object also where the schema doesn't say so."""
    return {"type": "object", **(tool.get("parameters") or {})}


def separable(tool: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`parameters`, where each argument has a rule of its own. Raises ``ValueError`` for a keyword that concerns
    several of them."""
    schema = parameters(tool)
    if refused := [keyword for keyword in _TOGETHER if keyword in schema]:
        raise ValueError(
            f"{refused[0]!r} of all arguments can't be enforced in this model's dialect; remove it from the tool's "
            "schema, or use a tool that is not strict"
        )
    return schema


def allowed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that an object may have, and their schemas: those that it lists, and further ones that it must
    have. Raises ``ValueError`` if it must have one that it may not have."""
    properties: dict[str, Any] = {**(schema.get("properties") or {})}
    for name in schema.get("required") or ():
        if properties.setdefault(name, schema.get("additionalProperties", True)) is False:
            raise ValueError(f"{name!r} is required, and its schema allows no value: give it another schema")
    return {name: value for name, value in properties.items() if value is not False}


def terms(text: str, markers: Sequence[str], marker: Callable[[str], str]) -> str:
    """The terms of a text, with those that ``marker`` returns for the markers in it."""
    if not markers:
        return quoted(text) if text else ""
    pieces = re.split(f"({'|'.join(map(re.escape, markers))})", text)
    return " ".join(marker(piece) if piece in markers else quoted(piece) for piece in pieces if piece)
