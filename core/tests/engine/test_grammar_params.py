"""What grammars of requests are made of, in Python."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmk import SamplingParams
from llmk.api import RequestError
from llmk.engine.wire.grammar_params import GrammarParams

DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"choice": ["a", "é"]}, "choice", '["a","é"]'),
        ({"choice": ("a",)}, "choice", '["a"]'),
        ({"regex": ""}, "regex", ""),
        ({"json": {"enum": [1, "é"]}}, "json", '{"enum":[1,"é"]}'),
        ({"json": '{"enum": [1]}'}, "json", '{"enum": [1]}'),
        ({"json": True}, "json", "true"),
    ],
)
def test_lists_and_objects_are_converted(fields: dict[str, Any], kind: str, text: str) -> None:
    for made in (GrammarParams(**fields), SamplingParams(structured_outputs=fields).structured_outputs):
        assert made is not None
        assert (made.kind, made.text) == (kind, text)
        assert hash(made) == hash(GrammarParams(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "takes one of regex, choice, json and lark; none is given"),
        ({"regex": "a", "json": {}}, "regex and json is given"),
        ({"choice": "ab"}, "Expected `array | null`, got `str`"),
        ({"choice": ["a", 1]}, "Expected `str`, got `int`"),
        ({"choice": []}, "choice has no entry"),
        ({"choice": ["a", ""]}, "choice has an empty entry"),
        ({"regex": b"a"}, "Expected `str | null`, got `bytes`"),
        ({"json": [1]}, "json is a schema (an object, or its text), not list"),
        ({"json": {"const": float("nan")}}, "json can't be written as JSON: Out of range float values"),
        ({"json": {"enum": {1, 2}}}, "json can't be written as JSON: Object of type set"),
        ({"json": {(1, 2): {}}}, "json can't be written as JSON: keys must be str"),
        ({"json": DEEP}, "json is nested too deeply"),
        ({"json": {"const": "\ud800"}}, "json is not valid Unicode: surrogates not allowed"),
        ({"regex": "\ud800"}, "regex is not valid Unicode"),
        ({"choice": ["\ud800"]}, "choice is not valid Unicode"),
    ],
)
def test_wrong_types_and_values_name_the_parameter(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        GrammarParams(**fields)
    assert caught.value.param == "structured_outputs"
    assert message in caught.value.message
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured_outputs=fields)
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("value", ["a+", 3, ["a"], {"grammar": "root ::= x"}, {"regex": "a", "extra": 1}])
def test_other_forms_are_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="structured_outputs can't be") as caught:
        SamplingParams(structured_outputs=value)
    assert caught.value.param == "structured_outputs"


def test_schemas_keep_their_order() -> None:
    names = ["b", "a", "c"]
    text = GrammarParams(json={"properties": {name: {} for name in names}}).text
    assert list(json.loads(text)["properties"]) == names
