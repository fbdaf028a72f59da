"""Schemas that can't be enforced wholly, as requests that prefer it get them: weaker, and never stronger."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import all_schemas

from llmk.api import GrammarContext, RequestError
from llmk.serve.generation import weakening
from llmk.serve.generation.weakening import weakened
from llmk.serve.protocol.tool_schema import fault
from llmk_grammar.compiler import Compiler

COMPILER = Compiler(
    GrammarContext([bytes([byte]) for byte in range(256)], frozenset(), lambda text: list(text.encode()))
)
VALUES: list[Any] = [
    *(None, 1, 4, True, "a", "aa", "2020-01-01", [], ["a"], ["a", "a"], [1, 2], {}, {"a": 1}, {"a": "a"}),
    *({"a": "aa", "b": 2}, {"c": None}, {"a": {"a": 1}}, {"b": [1]}, {"a": [], "b": "b", "c": "c"}),
]


def fits(schema: Any) -> bool:
    try:
        COMPILER.compile("json", json.dumps(schema))
    except RequestError:
        return False
    return True


def without(*keywords: str) -> Callable[[Any], bool]:
    """A compiler that can't enforce some keywords."""
    return lambda schema: not any(f'"{keyword}"' in json.dumps(schema) for keyword in keywords)


@pytest.mark.parametrize(
    ("schema", "kept", "left_out"),
    [
        ({"type": "string", "pattern": "(?=a)b", "maxLength": 3}, {"type": "string", "maxLength": 3}, ["pattern"]),
        ({"type": "string", "format": "shoe-size"}, {"type": "string"}, ["format"]),
        (
            {"properties": {"a": {"pattern": "(?=a)"}, "b": {"pattern": "b+"}}},
            {"properties": {"a": {}, "b": {"pattern": "b+"}}},
            ["pattern"],
        ),
        (
            {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "contains": {"const": 1}},
            {"type": "array", "items": {"type": "integer"}},
            ["contains", "uniqueItems"],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
            {"allOf": [{"anyOf": [{"type": "integer"}, {"minimum": 3}]}]},
            ["oneOf"],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "null"}], "not": {"const": 1}},
            {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            ["not"],
        ),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "not": {"const": 5}}, "m": {"type": "null"}}},
            {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}, "m": {"type": "null"}}},
            ["not"],
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
            ["$ref"],
        ),
        (
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "additionalProperties": False, "properties": {}},
            {"additionalProperties": False, "properties": {}},
            ["if", "then"],
        ),
    ],
)
def test_just_what_cannot_be_enforced_is_left_out(schema: Any, kept: Any, left_out: list[str]) -> None:
    assert not fits(schema)
    assert weakened(schema, fits) == (kept, left_out)


def test_what_covers_the_rest_goes_with_what_it_is_about() -> None:
    """Without the patterns, ``additionalProperties`` would forbid what they allow."""
    schema = {"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False}
    found = weakened(schema, without("patternProperties"))
    assert found == ({"properties": {"a": {}}}, ["patternProperties"])


def test_a_part_of_a_choice_makes_it_overlap() -> None:
    schema = {"oneOf": [{"minimum": 3, "pattern": "a"}, {"maximum": 2}]}
    found = weakened(schema, without("pattern"))
    assert found == ({"allOf": [{"anyOf": [{"minimum": 3}, {"maximum": 2}]}]}, ["pattern"])


@pytest.mark.parametrize("seconds", [1.0, 0.0])
def test_a_search_is_limited(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    tries = 0

    def never(schema: Any) -> bool:
        nonlocal tries
        tries += 1
        return len(json.dumps(schema)) % 2 == 0 or schema == {}

    monkeypatch.setattr(weakening, "MOST_SECONDS", seconds)
    schema = {"properties": {f"p{'x' * at}": {"minimum": at, "type": "integer"} for at in range(300)}}
    weakened(schema, never)
    assert tries <= weakening.MOST_TRIALS
    assert seconds or weakened(schema, never) is None


def test_nothing_fits() -> None:
    assert weakened({"type": "string"}, lambda schema: False) is None


def test_many_alike_take_few_tries() -> None:
    tries = 0

    def counted(schema: Any) -> bool:
        nonlocal tries
        tries += 1
        return "lo" not in json.dumps(schema)

    schema = {"properties": {f"p{at}": {"format": "lo" if at == 70 else "ok", "type": "string"} for at in range(500)}}
    found = weakened(schema, counted)
    assert found is not None
    assert sum("format" in each for each in found[0]["properties"].values()) == 499
    assert tries < 60


BATTERY = {name: schema for name, schema in all_schemas() if not fits(schema) and not fault(schema)}


@pytest.mark.parametrize("name", BATTERY)
def test_every_refused_schema_has_a_part_that_can_be_enforced(name: str) -> None:
    found = weakened(BATTERY[name], fits)
    assert found is not None
    assert found[1]
    assert fits(found[0])
    never_stronger(BATTERY[name], found[0])


def never_stronger(schema: Any, kept: Any) -> None:
    for value in VALUES:
        try:
            if jsonschema.Draft202012Validator(schema).is_valid(value):
                assert jsonschema.Draft202012Validator(kept).is_valid(value), value
        except (jsonschema.exceptions._WrappedReferencingError, RecursionError):
            return


TYPES = st.sampled_from([{"type": "string"}, {"type": "integer"}, {"enum": ["a", 1]}, {"const": "a"}])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("not", "if", "then", "items", "contains", "additionalProperties", "propertyNames"), inner),
            **dict.fromkeys(("oneOf", "anyOf", "allOf", "prefixItems"), several),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "(?=b)"]), inner, max_size=2),
            "type": st.sampled_from(["object", "array", "string"]),
            "pattern": st.sampled_from(["a+", "(?=b)"]),
            "format": st.sampled_from(["date", "shoe-size"]),
            "uniqueItems": st.just(True),
            "minimum": st.sampled_from([1, 10**30]),
            "required": st.just(["a"]),
        },
    )


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.recursive(TYPES, schemas_of, max_leaves=8))
def test_what_is_left_holds_for_all_that_the_schema_holds_for(schema: Any) -> None:
    if fits(schema):
        return
    found = weakened(schema, fits)
    assert found is not None
    assert fits(found[0])
    never_stronger(schema, found[0])
