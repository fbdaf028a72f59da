"""Cases of a dialect's grammar, keyword by keyword of JSON schemas: what a schema allows, its grammar allows, and no
more; a keyword that it can't enforce is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

from llmk.api import CallWriter, ParserSpec, RequestError, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing.case import Case, Skip
from llmk_testing.suites.parser_grammar import Grammar, Unreadable
from llmk_testing.suites.parser_sizes import LITTLE

_NAME = "f"
_POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
_TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["value"],
    "additionalProperties": False,
}
_HARD = {"pattern", "format", "not", "allOf", "oneOf", "patternProperties", "nullable", "x-unheard-of", "definitions"}
_LIST = [{"const": 1}, {"const": 2}]
_PARTS = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}}
_ESCAPED = (
    *(('a"b', "ab"), ("a\\b", "ab"), ("é😀", "é"), ("a/b", "ab"), ("a.b", "axb"), ("a|b", "a"), ("a*", "aa")),
    *(("[ab]", "a"), ("(a)", "a"), ("{x}", "x"), ("it's", "its"), ("<b>", "b"), ("^a$", "a"), ("a?", ""), ("#", "x")),
)
"""Texts that a rule must escape, and what it would allow otherwise."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of one argument, values that follow it, and values that don't, which no dialect can take for one that
    does: in some, any text is a string."""

    schema: Mapping[str, Any] | bool
    good: Sequence[Any]
    bad: Sequence[Any]
    more: Mapping[str, Any] | None = None
    """Further keywords of the arguments' schema."""
    hard: bool = False
    """Whether it is more than what tools that are strict may have everywhere."""

    @property
    def may_be_refused(self) -> bool:
        """Whether it has more than what tools that are strict may have everywhere, or several kinds of texts."""
        choices = self.schema.get("anyOf", ()) if isinstance(self.schema, Mapping) else ()
        texts = [each for each in choices if "string" in each.get("type", ()) or "enum" in each or "const" in each]
        return self.hard or not self.good or len(texts) > 1 or not _HARD.isdisjoint(_words([self.schema, self.more]))


def _nested(depth: int) -> dict[str, Any]:
    """Lists of lists of integers."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth + 1):
        schema = {"type": "array", "items": schema}
    return schema


def _lists(depth: int, value: Any) -> Any:
    """A value inside of lists."""
    for _ in range(depth):
        value = [value]
    return value


SCHEMAS: tuple[Schema, ...] = (
    Schema({}, ["x", "a\nb", "", 3, None, [1, {"a": "b"}]], []),
    Schema(True, ["x", 3, None, [1]], []),
    Schema(False, [], ["x", 3, None]),
    Schema({"type": "null"}, [None], [0, "x", False]),
    Schema({"type": "boolean"}, [True, False], ["x", 1, None]),
    Schema({"type": "integer"}, [0, -7, 10**12], [1.5, "x", None, True, [1]]),
    Schema({"type": "number"}, [0, -1.5, 1e-9], ["x", None, True]),
    Schema({"type": ["integer", "boolean"]}, [3, True], ["x", None, 1.5]),
    Schema({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None], ["x", 1.5, True]),
    *(
        Schema({"anyOf": [{"type": "string"}, {"type": kind}]}, ["a b", other, *(f"{x} y" for x in ascii_letters)], [])
        for kind, other in (("integer", 3), ("number", 0.5), ("boolean", True), ("null", None), ("array", [1]))
    ),
    Schema({"anyOf": [{"type": "string"}, {"type": "object"}]}, [{"a": 1}, *(f"{x} y" for x in ascii_letters)], []),
    Schema({"anyOf": [{"const": "on"}, _POINT]}, ["on", {"x": 1}], ["off", {"x": "a"}, {}]),
    Schema({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}, ["", "ab", None], ["abc", '"a"']),
    Schema({"anyOf": [{"enum": ["a", "b"]}, {"enum": ["c", 1]}]}, ["a", "c", 1], ["d", 2, '"a"']),
    Schema(
        {"anyOf": [{"enum": ["c", 1]}, {"type": ["null", "string"], "maxLength": 1}]}, ["c", 1, None], ["dd", 2, '"c"']
    ),
    Schema({"anyOf": [{"enum": ["cc", 1]}, {"type": "null"}]}, ["cc", 1, None], ["d", "c", 2, True, '"cc"']),
    Schema({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, [3, True], ["x"]),
    Schema({"const": "on"}, ["on"], ["off", "o", "", "onon", '"on"']),
    Schema({"const": 7}, [7], [8, "x", 77]),
    Schema({"const": None}, [None], [8, "x"]),
    Schema({"enum": ["a", 1, None, True]}, ["a", 1, None, True], ["b", 2, False, "", '"a"', "[1]"]),
    Schema({"enum": ["", "two words"]}, ["", "two words"], ["two", "b"]),
    Schema({"enum": [1, 2.5]}, [1, 2.5], [2, 25]),
    *(Schema({"enum": [one, "zz"]}, [one, "zz"], [other, "z"], hard=True) for one, other in _ESCAPED),
    *(Schema({"const": one}, [one], [other], hard=True) for one, other in _ESCAPED),
    Schema({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "abcd"], ["a", "abcde", ""]),
    Schema({"type": "string", "minLength": 1}, ["a", "a" * 99], [""]),
    Schema({"type": "string", "maxLength": 3}, ["", "abc"], ["abcd", '"ab"']),
    Schema({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["xyz", ""]),
    Schema({"type": "string", "format": "date"}, ["2024-02-29"], ["someday"]),
    Schema({"type": "integer", "minimum": 2, "maximum": 5}, [2, 5], [1, 6]),
    Schema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5], [0, 1, 2.5]),
    Schema({"type": "integer", "multipleOf": 5}, [0, 10], [3]),
    Schema({"type": "array"}, [[], [1, "a", None, {"b": [True]}]], [3, {"a": 1}]),
    Schema({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3, 4]], [["a"], [1, None], 1]),
    Schema(
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}, [[1], [1, 2, 3]], [[], [1] * 4]
    ),
    Schema({"type": "array", "items": {"type": "string"}, "minItems": 2}, [["a", "b"], ["a"] * 4], [["a"], []]),
    Schema({"type": "array", "items": {"type": "string"}, "maxItems": 1}, [[], ["a"]], [["a", "b"]]),
    Schema({"type": "array", "maxItems": 0}, [[]], [[1]]),
    Schema({"type": "array", "items": {"type": "array", "items": {"type": "null"}}}, [[[], [None]]], [[1], [[1]]]),
    Schema({"type": "array", "items": _POINT}, [[{"x": 1}, {"x": 2}]], [[{}], [{"x": "a"}], [{"x": 1, "y": 2}]]),
    Schema({"type": "object"}, [{}, {"a": 1, "b": {"c": [1, "x"]}}], [3, [1]]),
    Schema({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    Schema(
        {"type": "object", "properties": _PARTS, "required": ["b"], "additionalProperties": False},
        [{"b": "x"}, {"a": 1, "b": "x"}, {"b": "x", "c": True}, {"a": 1, "b": "", "c": False}],
        [{}, {"a": 1}, {"a": 1, "c": True}, {"b": "x", "d": 1}, {"a": "x", "b": "x"}, {"b": 1}],
    ),
    Schema(
        {"type": "object", "properties": _PARTS, "additionalProperties": False},
        [{}, {"a": 1}, {"b": "x"}, {"c": True}, {"a": 1, "c": True}, {"a": 1, "b": "x", "c": False}],
        [{"d": 1}, {"c": 1}],
    ),
    Schema(
        {"type": "object", "properties": {"two words": {"enum": ["a b"]}}, "additionalProperties": False},
        [{}, {"two words": "a b"}],
        [{"two words": "a"}, {"two": "a b"}],
    ),
    Schema({"$ref": "#/$defs/point"}, [{"x": 1}], [{}, {"x": "a"}, 3], {"$defs": {"point": _POINT}}),
    Schema({"$ref": "#/definitions/point"}, [{"x": 1}], [{}, {"y": 1}], {"definitions": {"point": _POINT}}),
    Schema(
        {"type": "array", "items": {"$ref": "#/$defs/point"}}, [[{"x": 1}]], [[{}], [1]], {"$defs": {"point": _POINT}}
    ),
    Schema({"$ref": "#/$defs/word"}, ["a", "abc"], ["abcd"], {"$defs": {"word": {"type": "string", "maxLength": 3}}}),
    Schema(
        {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
        [{"x": 1}, None],
        [{"x": "a"}, 3],
        {"$defs": {"point": _POINT}},
    ),
    Schema(
        {"$ref": "#/$defs/tree"},
        [{"value": 1}, {"value": 1, "children": [{"value": 2, "children": []}, {"value": 3}]}],
        [{"value": "a"}, {"value": 1, "children": [{}]}, {"value": 1, "children": [{"value": 2, "children": [3]}]}],
        {"$defs": {"tree": _TREE}},
        hard=True,
    ),
    Schema({"$ref": "#/$defs/same"}, [], [], {"$defs": {"same": {"$ref": "#/$defs/same"}}}, hard=True),
    Schema(_nested(5), [_lists(5, [3])], [_lists(5, ["a"]), _lists(5, 3), 3]),
    Schema(_nested(60), [_lists(60, [3])], [_lists(60, ["a"]), 3], hard=True),
    Schema({"type": "integer", "nullable": False}, [3], ["x"]),
    Schema({"type": "string", "contentEncoding": "base64"}, ["YQ==", "?"], []),
    Schema({"type": "string", "contentMediaType": "application/json"}, ["{}", "?"], []),
    Schema({"type": "string", "if": {"minLength": 2}, "then": {"enum": ["ab"]}}, ["b", "ab"], ["bc"], hard=True),
    Schema({"type": "integer", "if": {"minimum": 5}, "then": {"const": 6}}, [3, 6], [7], hard=True),
    Schema({"type": "object", "dependentRequired": {"a": ["b"]}}, [{}, {"a": 1, "b": 2}], [{"a": 1}], hard=True),
    Schema({"type": "object", "propertyNames": {"maxLength": 1}}, [{}, {"a": 1}], [{"ab": 1}], hard=True),
    Schema({"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 1}], hard=True),
    Schema({"type": "object", "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 1}], [{}], hard=True),
    Schema({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, [{}, {"b": 2}], [{"a": 1}], hard=True),
    Schema({"type": "object", "dependencies": {"a": ["b"]}}, [{}, {"a": 1, "b": 2}], [{"a": 1}], hard=True),
    Schema({"type": "object", "unevaluatedProperties": False}, [{}], [{"a": 1}], hard=True),
    Schema({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"a": "x"}], hard=True),
    Schema({"type": "object", "properties": _PARTS}, [{}, {"a": 1}], [{"a": "x"}, {"c": 1}], hard=True),
    Schema({"type": "object", "required": ["a"]}, [{"a": 1}], [{}, {"b": 1}], hard=True),
    Schema({"type": "array", "uniqueItems": True}, [[], [1, 2]], [[1, 1]], hard=True),
    Schema({"type": "array", "contains": {"const": 1}}, [[1], [2, 1]], [[], [2]], hard=True),
    Schema({"type": "array", "prefixItems": [{"const": 1}]}, [[1], [1, "a"]], [[2]], hard=True),
    Schema({"type": "array", "items": _LIST}, [[1, 2]], [[2], [1, 1]], hard=True),
    Schema({"type": "array", "prefixItems": _LIST, "items": False}, [[1, 2]], [[2], [1, 2, 3]], hard=True),
    Schema({"type": "array", "prefixItems": _LIST, "unevaluatedItems": False}, [[1, 2]], [[1, 2, 3]], hard=True),
    Schema({"type": "array", "items": _LIST, "additionalItems": False}, [[1, 2]], [[1, 2, 3]], hard=True),
    Schema({"type": "array", "contains": {"const": 1}, "minContains": 2}, [[1, 1]], [[1], [2, 2]], hard=True),
    Schema({"type": "array", "contains": {"const": 1}, "maxContains": 1}, [[1, 2]], [[1, 1]], hard=True),
    Schema({"type": "array", "items": False}, [[]], [[1], ["x"]], hard=True),
    Schema({"type": "integer", "x-unheard-of": 1}, [3], ["x"]),
    Schema({"type": "string", "not": {"const": "a"}}, ["b"], ["a"]),
    Schema({"type": "string", "allOf": [{"maxLength": 2}]}, ["b"], ["abc"]),
    Schema({"type": "object", "properties": _PARTS, "patternProperties": {"^z": {}}}, [], [{"a": "x"}]),
)

_CLOSED = {"required": [], "additionalProperties": False}
_A_NEEDS_B = [{"a": 1, "b": "x"}, {"b": "x"}, {}], [{"a": 1}, {"a": 1, "c": True}]
_ONLY_A = [{"a": 1}, {"a": 7}], [{}, {"b": "x"}, {"c": True}]
ALL_TOGETHER: tuple[tuple[Mapping[str, Any], Sequence[Any], Sequence[Any]], ...] = (
    ({"minProperties": 1}, [{"a": 1}, {"a": 1, "b": "x"}], [{}]),
    ({"maxProperties": 1}, [{}, {"b": "x"}], [{"a": 1, "b": "x"}]),
    ({"propertyNames": {"enum": ["a", "b"]}}, [{}, {"a": 1, "b": "x"}], [{"c": True}]),
    ({"propertyNames": {"maxLength": 0}}, [{}], [{"a": 1}]),
    ({"patternProperties": {"^a": {"minimum": 5}}}, [{}, {"a": 5}], [{"a": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, *_A_NEEDS_B),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, *_A_NEEDS_B),
    ({"dependencies": {"a": ["b"]}}, *_A_NEEDS_B),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, *_A_NEEDS_B),
    ({"if": {"required": ["a"]}, "else": {"required": ["b"]}}, [{"a": 1}, {"b": "x"}], [{}, {"c": True}]),
    ({"not": {"required": ["a"]}}, [{}, {"b": "x"}], [{"a": 1}, {"a": 1, "b": "x"}]),
    ({"allOf": [{"required": ["a"]}]}, *_ONLY_A),
    ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": "x"}], [{}, {"c": True}]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "b": "x"}]),
    ({"$ref": "#/$defs/more", "$defs": {"more": {"required": ["a"]}}}, *_ONLY_A),
    ({"$dynamicRef": "#/$defs/more", "$defs": {"more": {"required": ["a"]}}}, *_ONLY_A),
    ({"const": {"a": 1}}, [{"a": 1}], [{}, {"a": 2}]),
    ({"enum": [{"a": 1}, {}]}, [{"a": 1}, {}], [{"a": 2}, {"b": "x"}]),
    ({"properties": {**_PARTS, "a": False}}, [{}, {"b": "x"}], [{"a": 1}]),
    ({"required": ["d"], "additionalProperties": {"type": "integer"}}, [{"d": 1}], [{}, {"a": 1}, {"d": "x"}]),
    ({"additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"d": "x"}, {"a": "x"}]),
    ({"additionalProperties": True}, [{}, {"a": 1}], [{"a": "x"}, {"c": 1}, {"a": "x", "d": 1}]),
    ({"additionalProperties": True, "required": ["a"]}, [{"a": 1}], [{"a": "x"}, {}, {"d": 1}]),
    ({"additionalProperties": False, "unevaluatedProperties": False}, [{}, {"a": 1}], [{"d": 1}, {"a": "x"}]),
    ({"additionalProperties": True, "unevaluatedProperties": False}, [{}, {"a": 1}], [{"a": "x"}]),
)
"""Keywords of the schema of all arguments, arguments that follow it, and those that don't. A grammar whose rules each
stand for an argument must follow them, too, or refuse them."""

NOTES = {"title": "T", "description": "D", "default": 3, "examples": [3], "deprecated": True, "$comment": "C"}
NOTES_OF_ALL = {**NOTES, "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://x.example/y"}
"""Keywords that say nothing of what is valid; libraries that make schemas write them everywhere."""


def schema_cases(spec: ParserSpec, case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one dialect that has a writer."""
    yield case("its writer's grammar follows each keyword of a schema, or refuses it by name", check_schemas, spec)
    yield case("its writer's grammar follows what arguments are required", check_arguments, spec)
    name = "its writer's grammar follows each keyword of all arguments together, or refuses it by name"
    yield case(name, check_all_together, spec)
    yield case("its writer's grammar names no argument twice", check_twice, spec)
    yield case("its writer's grammar follows schemas with notes", check_notes, spec)
    yield case("its writer's grammar follows schemas that say little", check_little, spec)


def check_schemas(spec: ParserSpec) -> str:
    """Each keyword, as an argument's schema."""
    writer, count = _writer(spec), 0
    for one in SCHEMAS:
        parameters = _parameters({"x": one.schema}, ["x"], one.more)
        followed = _check(writer, parameters, [{"x": value} for value in one.good], [{"x": value} for value in one.bad])
        assert followed or one.may_be_refused, f"the schema {one.schema} is refused, which strict tools have"
        count += followed
    return f"{count} of {len(SCHEMAS)} schemas can be followed"


def check_arguments(spec: ParserSpec) -> None:
    """Required arguments must be there; others may, each by itself, in the schema's order."""
    writer = _writer(spec)
    every = {"a": 1, "b": "x", "c": True}
    for required in ([], ["a"], ["b"], ["c"], ["a", "c"], ["a", "b", "c"]):
        some = [{key: every[key] for key in "abc" if number >> "abc".index(key) & 1} for number in range(8)]
        good = [each for each in some if set(required) <= each.keys()]
        bad = [each for each in some if not set(required) <= each.keys()]
        followed = _check(writer, _parameters(_PARTS, required, None), good, [*bad, {**every, "d": 1}])
        assert followed, f"a schema of arguments with types, required {required}, is refused"


def check_all_together(spec: ParserSpec) -> str:
    """Each keyword of objects, alongside the arguments that are listed."""
    writer, count = _writer(spec), 0
    for keywords, good, bad in ALL_TOGETHER:
        count += _check(writer, {"type": "object", "properties": _PARTS, **_CLOSED, **keywords}, good, bad)
    return f"{count} of {len(ALL_TOGETHER)} schemas can be followed"


def check_twice(spec: ParserSpec) -> str:
    """Also where the schema allows arguments that it does not list: of two with one name, a reader takes either."""
    writer, count = _writer(spec), 0
    text = _rendered(writer, {"alpha": 1, "omega": "x"})
    if text is None:
        raise Skip("its writer does not render the call")
    twice = text.replace("omega", "alpha")
    for required in ([], ["alpha"]):
        for further in ({}, {"additionalProperties": True}, {"additionalProperties": False}):
            parameters = {"type": "object", "properties": {"alpha": {"type": "integer"}}, "required": required}
            try:
                tool = {"name": _NAME, "description": "", "parameters": {**parameters, **further}}
                grammar = Grammar(writer, many=False, tools=[tool])
            except (Unreadable, RequestError, ValueError):
                continue
            assert not grammar.allows(twice), f"{twice!r} is allowed by the grammar of {parameters | further}"
            count += 1
    return f"{count} schemas"


def check_notes(spec: ParserSpec) -> str:
    """A schema is as good with a title, a description, a default and the like, of arguments and of all together."""
    writer = _writer(spec)
    for name, note in NOTES_OF_ALL.items():
        own = {name: note} if name in NOTES else {}
        whole: Mapping[str, Mapping[str, Any]] = {**_PARTS, "d": _POINT}
        parts = {key: {**part, **own} for key, part in whole.items()}
        parameters = _parameters(parts, ["a"], {name: note})
        good = [{"a": 1}, {"a": 1, "b": "x", "c": True, "d": {"x": 2}}]
        followed = _check(writer, parameters, good, [{}, {"a": "x"}, {"a": 1, "d": {}}])
        assert followed, f"a schema with {name!r}, which says nothing of values, is refused"
    return f"{len(NOTES_OF_ALL)} notes"


def check_little(spec: ParserSpec) -> str:
    """A tool without arguments may come without parameters, or with none that are named."""
    writer = _writer(spec)
    for little in LITTLE:
        grammar = Grammar(writer, many=False, tools=[{"name": _NAME, "description": "", **little}])
        text = _rendered(writer, {})
        assert text is not None, "its writer does not render a call without arguments"
        assert grammar.allows(text), f"{text!r} is refused of a tool that says {little}"
    return f"{len(LITTLE)} tools"


def _check(writer: CallWriter, parameters: dict[str, Any], good: Sequence[Any], bad: Sequence[Any]) -> bool:
    """Whether the grammar follows the schema."""
    try:
        grammar = Grammar(writer, many=False, tools=[{"name": _NAME, "description": "", "parameters": parameters}])
    except Unreadable:
        return False
    except (RequestError, ValueError) as error:
        said = str(getattr(error, "message", "")) or str(error)
        assert any(repr(word) in said for word in _words(parameters)), (
            f"{parameters} is refused, which names none of it: {said}"
        )
        return False
    for arguments in good:
        if (text := _rendered(writer, arguments)) is not None:
            assert grammar.allows(text), f"{text!r} follows the schema {parameters}, and the grammar refuses it"
    for arguments in bad:
        if (text := _rendered(writer, arguments)) is not None:
            assert not grammar.allows(text), f"{text!r} is against the schema {parameters}, and the grammar allows it"
    return True


def _words(schema: Any) -> Iterator[str]:
    """All keys in a schema."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            yield key
            yield from _words(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _words(value)


def _parameters(properties: Mapping[str, Any], required: list[str], more: Mapping[str, Any] | None) -> dict[str, Any]:
    closed = {"required": required, "additionalProperties": False}
    return {"type": "object", "properties": dict(properties), **closed, **(more or {})}


def _rendered(writer: CallWriter, arguments: Mapping[str, Any]) -> str | None:
    try:
        return writer.render([WrittenCall(_NAME, dict(arguments), "call_f")])
    except (RequestError, ValueError):
        return None


def _writer(spec: ParserSpec) -> CallWriter:
    writer: CallWriter = load_object(spec.writer)
    return writer
