"""Sampling parameters are what their types say, or an error that names the field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from llmk.api import RequestError
from llmk.engine.wire.sampling_params import Parameter, SamplingParams, parameters


@pytest.mark.parametrize("field", ["stop", "bad_words"])
def test_a_text_alone_is_one_text(field: str) -> None:
    assert getattr(SamplingParams(**{field: "garden"}), field) == ("garden",)
    assert getattr(SamplingParams(**{field: ["a", "b"]}), field) == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "7"),
        ("n", 2.0),
        ("top_k", False),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", None),
        ("temperature", math.nan),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("stop", 7),
        ("stop", [1]),
        ("stop", [""]),
        ("stop", None),
        ("bad_words", ["a", 1]),
        ("include_stop", 1),
        ("ignore_eos", "no"),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 5),
        ("allowed_token_ids", [1.5]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: "x"}),
        ("bad_word_ids", [1]),
        ("logits_processors", {"a": 1}),
        ("seed", "x"),
        ("logprobs", True),
    ],
)
def test_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_what_is_equal_is_taken() -> None:
    params = SamplingParams(temperature=1, top_p=1, stop_token_ids=[1], allowed_token_ids=[2], logit_bias={3: 1})
    assert params == SamplingParams(stop_token_ids=(1,), allowed_token_ids=(2,), logit_bias={3: 1.0})
    assert isinstance(params.temperature, float)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_top_p_of_zero_keeps_the_most_likely_token() -> None:
    assert 0 < SamplingParams(top_p=0).top_p < 1e-8


def test_a_top_k_of_minus_one_keeps_all_tokens() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


@pytest.mark.parametrize("parameter", parameters(), ids=lambda parameter: parameter.name)
def test_each_declaration_is_complete(parameter: Parameter) -> None:
    """Checks, request fields, flags and pages are made of it."""
    assert parameter.summary
    assert getattr(SamplingParams(), parameter.name) == parameter.default
    for bound in (parameter.low, parameter.high):
        if math.isfinite(bound):
            SamplingParams(**{parameter.name: bound})
            beyond = bound - 1 if bound == parameter.low else bound + 1
            with pytest.raises(RequestError, match=f"{parameter.name} must be between") as caught:
                SamplingParams(**{parameter.name: beyond})
            assert caught.value.param == parameter.name
