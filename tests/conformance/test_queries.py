"""The suites ask for every optional field of a query at another value than its default, so that a kernel that declares
to know it is tried with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from llmk.api import AttentionQuery, LinearQuery, MoEQuery, PlatformFacts, Query
from llmk.api.matching import neutral_values
from llmk.reference.moe import MoEExamples
from llmk_testing.queries import attention_queries, linear_queries, moe_queries

HERE: dict[str, Any] = {"platform": PlatformFacts(name="here", arch="any", device_type="cpu"), "dtype": "float32"}
FORMATS = ("plain", "fp8_channel")
NEVER = {"causal", "lookup"}
"""Nothing that is tried serves these at another value: tables that only GGUF files pack, plugins/gguf tests."""


@pytest.mark.parametrize(
    ("kind", "queries"),
    [
        (AttentionQuery, attention_queries()),
        (LinearQuery, linear_queries(FORMATS)),
        (MoEQuery, moe_queries(FORMATS, lambda make: True, MoEExamples(facts=({"router_softcap": 30.0},)))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_is_tried(kind: type[Query], queries: Mapping[str, Any]) -> None:
    made = [make(site="here", **HERE) for make in queries.values()]
    neutral = neutral_values(kind)
    tried = {name for name, value in neutral.items() if any(getattr(query, name) != value for query in made)}
    assert neutral.keys() - tried - NEVER == set()
