"""JSON schemas of all keywords of the 2020-12 draft, alone and in combination, and such as real APIs have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

KEYWORDS: dict[str, Schema] = {
    "any": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string", "maxLength": 12},
    "types": {"type": ["integer", "null"]},
    "types-4": {"type": ["string", "boolean", "number", "null"], "maxLength": 5},
    "enum": {"enum": ["a", "b\"c", "é\n", ""]},
    "enum-mixed": {"enum": [1, "1", None, True, 1.5, [], {"a": [1]}]},
    "const": {"const": "exactly"},
    "const-object": {"const": {"k": [1, {"n": None}]}},
    "minimum": {"type": "integer", "minimum": -3, "maximum": 17},
    "exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 5},
    "number-range": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number-exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "large-range": {"type": "integer", "minimum": 998, "maximum": 100_203},
    "negative-range": {"type": "integer", "minimum": -1200, "maximum": -7},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "multiple-decimal": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    "min-length": {"type": "string", "minLength": 2, "maxLength": 4},
    "exact-length": {"type": "string", "minLength": 3, "maxLength": 3},
    "empty-string": {"type": "string", "maxLength": 0},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern-part": {"type": "string", "pattern": "ab+", "maxLength": 20},
    "pattern-alternatives": {"type": "string", "pattern": "^(foo|ba[rz])?$"},
    "pattern-digits": {"type": "string", "pattern": r"^\d{4}-\d{2}$"},
    "pattern-escapes": {"type": "string", "pattern": r'^["\\/]{1,3}$'},
    "pattern-lookahead": {"type": "string", "pattern": "^(?=a)b"},
    "pattern-backreference": {"type": "string", "pattern": r"^(a)\1$"},
    "format-date": {"type": "string", "format": "date"},
    "format-time": {"type": "string", "format": "time"},
    "format-date-time": {"type": "string", "format": "date-time"},
    "format-uuid": {"type": "string", "format": "uuid"},
    "format-email": {"type": "string", "format": "email"},
    "format-ipv4": {"type": "string", "format": "ipv4"},
    "format-uri": {"type": "string", "format": "uri"},
    "format-unknown": {"type": "string", "format": "colour", "maxLength": 9},
    "object": {"type": "object"},
    "closed": {"type": "object", "additionalProperties": False},
    "properties": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
    "required": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "required-last": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"type": "boolean"}},
        "required": ["c"],
        "additionalProperties": False,
    },
    "required-unknown": {"type": "object", "required": ["zz"], "additionalProperties": {"type": "integer"}},
    "additional": {"type": "object", "additionalProperties": {"type": "integer"}},
    "additional-and-known": {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 3}},
        "additionalProperties": {"type": "boolean"},
    },
    "pattern-properties": {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
    },
    "property-names": {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}},
    "min-properties": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}},
    "max-properties": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}},
    "dependent-required": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "dependentRequired": {"a": ["b"]},
    },
    "dependent-schemas": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "dependentSchemas": {"a": {"required": ["b"]}},
    },
    "unevaluated-properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "unevaluatedProperties": False,
    },
    "names-with-escapes": {
        "type": "object",
        "properties": {'a"b': {"type": "integer"}, "c\\d": {"type": "integer"}, "é\n": {"type": "integer"}},
        "required": ['a"b', "c\\d", "é\n"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "maxItems": 3},
    "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    "min-items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "prefix-items": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
        "items": False,
        "minItems": 2,
    },
    "prefix-and-items": {
        "type": "array",
        "prefixItems": [{"type": "integer"}],
        "items": {"type": "null"},
        "maxItems": 4,
    },
    "unique": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3},
    "contains": {"type": "array", "contains": {"const": 7}, "maxItems": 3},
    "min-contains": {"type": "array", "contains": {"const": 7}, "minContains": 2, "maxContains": 2},
    "unevaluated-items": {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    "any-of": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "one-of": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    "one-of-overlapping": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
    "one-of-constants": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
                "required": ["kind", "x"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "b"}, "y": {"type": "boolean"}},
                "required": ["kind", "y"],
                "additionalProperties": False,
            },
        ]
    },
    "all-of": {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 9}]},
    "all-of-objects": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "all-of-patterns": {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}], "maxLength": 6},
    "not": {"not": {"type": "string"}},
    "not-const": {"type": "integer", "not": {"const": 3}},
    "if-then": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "if": {"properties": {"a": {"const": True}}},
        "then": {"required": ["b"]},
    },
    "nothing": {"allOf": [{"type": "integer"}, {"type": "string"}]},
    "nullable": {"type": "string", "maxLength": 4, "nullable": True},
    "annotations": {
        "title": "T", "description": "D", "default": 3, "examples": [1], "deprecated": True, "readOnly": True,
        "$comment": "c", "type": "integer",
    },
    "draft-7-definitions": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer", "minimum": 1, "maximum": 3}},
        "$ref": "#/definitions/n",
    },
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "c": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
                },
                "required": ["v", "c"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "remote-reference": {"$ref": "https://example.com/schema.json"},
    "missing-reference": {"$ref": "#/$defs/gone"},
    "dynamic-reference": {"$dynamicAnchor": "x", "$dynamicRef": "#x"},
    "content": {"type": "string", "contentEncoding": "base64", "contentMediaType": "text/plain", "maxLength": 8},
}  # fmt: skip
"""A schema for each keyword, some with a kind of value that is hard for it."""

_TEXT = {"type": "string", "maxLength": 10}
_COLOR = {"type": "string", "pattern": "^[0-9a-f]{6}$"}
_VALUE = {"type": ["string", "number"], "maxLength": 4}
_ID = {"type": "string", "pattern": "^[a-z]{2,4}_[0-9a-f]{4}$"}
_MONEY = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "minimum": 0}, "currency": {"enum": ["usd", "eur", "nok"]}},
    "required": ["amount", "currency"],
    "additionalProperties": False,
}


def closed(**properties: Schema) -> Schema:
    """An object with just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


APIS: dict[str, Schema] = {
    "weather": closed(location=_TEXT, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": "integer", "minimum": 1}),
    "charge": closed(
        id=_ID, price=_MONEY, captured={"type": "boolean"}, receipt={"type": ["string", "null"], "maxLength": 5}
    ),
    "issue": closed(
        number={"type": "integer", "minimum": 1},
        state={"enum": ["open", "closed"]},
        labels={"type": "array", "items": closed(name=_TEXT, color=_COLOR), "maxItems": 2},
        assignee={"anyOf": [closed(login=_TEXT), {"type": "null"}]},
    ),
    "event": closed(
        title=_TEXT,
        start={"type": "string", "format": "date-time"},
        attendees={"type": "array", "items": {"type": "string", "format": "email"}, "minItems": 1, "maxItems": 2},
    ),
    "message": closed(
        channel={"type": "string", "pattern": "^C[0-9A-Z]{8}$"},
        blocks={
            "type": "array",
            "maxItems": 2,
            "items": {
                "anyOf": [closed(type={"const": "section"}, text=_TEXT), closed(type={"const": "divider"})],
            },
        },
    ),
    "query": closed(
        table={"enum": ["users", "orders"]},
        where={
            "type": "array",
            "maxItems": 2,
            "items": closed(column=_TEXT, op={"enum": ["=", "<", ">"]}, value=_VALUE),
        },
        limit={"type": ["integer", "null"]},
    ),
    "steps": closed(
        steps={"type": "array", "items": closed(explanation=_TEXT, output=_TEXT), "minItems": 1, "maxItems": 2},
        answer=_TEXT,
    ),
    "point": {
        "type": "object",
        "properties": {
            "type": {"const": "Point"},
            "coordinates": {
                "type": "array",
                "prefixItems": [
                    {"type": "number", "minimum": -180, "maximum": 180},
                    {"type": "number", "minimum": -90, "maximum": 90},
                ],
                "items": False,
                "minItems": 2,
            },
        },
        "required": ["type", "coordinates"],
        "additionalProperties": False,
    },
    "settings": {
        "type": "object",
        "properties": {"theme": {"enum": ["dark", "light"]}, "size": {"type": "integer", "minimum": 8, "maximum": 72}},
        "additionalProperties": False,
    },
    "page": closed(items={"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}, next=_TEXT)
    | {"$defs": {"item": closed(id=_ID, tags={"type": "array", "items": _TEXT, "maxItems": 2})}},
}  # fmt: skip
"""Schemas such as the parameters and results of real APIs have."""


def all_schemas() -> Iterator[tuple[str, Schema]]:
    """Every schema by a name: each of a keyword or an API alone, and in each place in which a schema may be."""
    for name, schema in {**KEYWORDS, **APIS}.items():
        own, defs = dict(schema), {}
        for place in ("$defs", "definitions", "$schema"):
            if place in own:
                defs[place] = own.pop(place)
        yield name, schema
        yield f"{name} in a property", {**closed(value=own), **defs}
        yield f"{name} in an optional property", {
            "type": "object", "properties": {"n": {"const": 1}, "value": own}, "required": ["n"],
            "additionalProperties": False, **defs,
        }  # fmt: skip
        yield f"{name} in a list", {"type": "array", "items": own, "minItems": 1, "maxItems": 2, **defs}
        yield f"{name} or a flag", {"anyOf": [closed(value=own), {"type": "boolean"}], **defs}
        if not defs:
            yield f"{name} by reference", {"$defs": {"it": own}, **closed(first={"$ref": "#/$defs/it"})}
