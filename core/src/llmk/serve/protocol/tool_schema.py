"""JSON schemas of tools: checks schemas, and arguments against them, in bounded time, since clients write the
schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, NoReturn

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SCHEMA = ("additionalProperties", "contains", "else", "if", "not", "propertyNames", "then", "unevaluatedProperties")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED_SCHEMAS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose values are schemas by name."""
_TEXTS = ("$ref", "description", "format", "pattern", "title")
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_NUMBERS = ("maximum", "minimum", "multipleOf")
_DEEPEST = 64
_MOST_STEPS = 100_000
"""Limit of the cost of a check of arguments; a step takes about a microsecond."""
_LONGEST_MESSAGE = 300

_steps: ContextVar[list[int]] = ContextVar("steps")


def fault(schema: Any, path: str = "", depth: int = 0) -> tuple[str, str] | None:
    """The path at which ``schema`` is not a valid JSON schema, and the reason; ``None`` if it is valid."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return path, f"a schema is an object, not {_shown(schema)}"
    if depth > _DEEPEST:
        return path, f"schemas are nested deeper than {_DEEPEST}"
    for key, value in schema.items():
        where = f"{path}.{key}"
        if (why := _keyword_fault(key, value)) is not None:
            return where, why
        for place, inner in inner_schemas(key, value):
            if (found := fault(inner, where + _shown_place(place), depth + 1)) is not None:
                return found
    return None


def mismatch(arguments: str, schema: Mapping[str, Any]) -> str:
    """How a tool call's arguments violate the tool's schema; empty if they are valid."""
    try:
        value = json.loads(arguments, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    token = _steps.set([_MOST_STEPS])
    try:
        found = next(_validator(schema).iter_errors(value), None)
    except Exception as error:  # an unresolvable or infinite reference, or the limit of steps
        return f"can't be checked: {type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
    finally:
        _steps.reset(token)
    return f"{found.json_path}: {found.message}"[:_LONGEST_MESSAGE] if found is not None else ""


def _keyword_fault(key: str, value: Any) -> str | None:
    """Why ``value`` is invalid for the keyword, without regard to nested schemas."""
    if key == "type":
        types = value if isinstance(value, list) else [value]
        unknown = [one for one in types if not isinstance(one, str) or one not in TYPES]
        return f"{_shown(unknown[0])} is not a type; types are {', '.join(sorted(TYPES))}" if unknown else None
    wanted: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
        (NAMED_SCHEMAS, lambda given: isinstance(given, dict), "an object"),
        (_SCHEMAS, lambda given: isinstance(given, list) and bool(given), "a list that is not empty"),
        (("enum",), lambda given: isinstance(given, list), "a list"),
        (("required",), _is_names, "a list of names"),
        (_TEXTS, lambda given: isinstance(given, str), "a text"),
        (_COUNTS, lambda given: _is_number(given) and given >= 0 and given == int(given), "a count"),
        (_NUMBERS, _is_number, "a number"),
    )
    for keys, fits, what in wanted:
        if key in keys and not fits(value):
            return f"{_shown(value)} is not {what}"
    return None


def inner_schemas(key: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The schemas that are nested in a keyword's value, with their paths in it: a name, an index, or nothing."""
    if key in NAMED_SCHEMAS:
        yield from (((name,), inner) for name, inner in value.items())
    elif key in _SCHEMAS or (key == "items" and isinstance(value, list)):
        yield from (((at,), inner) for at, inner in enumerate(value))
    elif key in _SCHEMA or key == "items":
        yield (), value


def _shown_place(place: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _validator(schema: Mapping[str, Any]) -> Any:
    from referencing import Registry

    registry: Any = Registry()  # the default registry would fetch the URL of a client's "$ref"
    return _bounded()(schema, registry=registry)


@cache
def _bounded() -> Any:
    """A validator that counts steps for each keyword. Regular expressions are skipped, since one may take for ever."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    def bounded(check: Callable[..., Any]) -> Callable[..., Any]:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            left = _steps.get()
            left[0] -= 1 + _size(value) + _size(instance)
            if left[0] < 0:
                raise ValueError(f"it takes more than {_MOST_STEPS} steps")
            return check(validator, value, instance, schema)

        return run

    checks = {name: bounded(check) for name, check in Draft202012Validator.VALIDATORS.items()}
    unchecked = dict.fromkeys(("pattern", "patternProperties"), bounded(lambda *_: None))
    return extend(Draft202012Validator, {**checks, "uniqueItems": bounded(_unique), **unchecked})


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _unique(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """``uniqueItems`` in linear time, unlike the library's."""
    from jsonschema import ValidationError

    if wanted is True and isinstance(instance, list):
        written: Sequence[str] = [json.dumps(item, sort_keys=True) for item in instance]
        if len(set(written)) < len(written):
            yield ValidationError("items are not unique")
