"""The suites ask for every optional field of a query at another value than its default, so that a kernel that declares
to know it is tried with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from trying import registered

from llmk.api import OK, AttentionQuery, KernelSpec, LinearQuery, MoEQuery, PlatformFacts, Query, Verdict, no
from llmk.api.matching import neutral_values
from llmk.reference.moe import MoEExamples
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.queries import attention_queries, linear_queries, moe_queries
from llmk_testing.suites import cases

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


def padded(query: AttentionQuery) -> Verdict:
    """Groups of heads that fill no power of two, whole caches or long windows, few sizes of blocks."""
    group = query.num_heads // query.num_kv_heads
    good = group in (3, 5, 6, 7, 12) and query.head_dim in (64, 128) and query.block_size in (8, 16, 32)
    good = good and (query.sliding_window is None or query.sliding_window >= 1024) and query.latent_dim is None
    return OK if good and query.cache_dtype == query.dtype else no("shape")


def projected(query: LinearQuery) -> Verdict:
    return OK if not (query.in_features % 1024 or query.out_features % 1024) else no("in_features")


def crowded(query: MoEQuery) -> Verdict:
    """A soft limit, never with biases; few large experts."""
    return OK if query.hidden_size >= 1024 and not query.bias else no("hidden_size")


@pytest.mark.parametrize(
    ("id", "supports", "labels"),
    [
        (
            "reference.attention",
            padded,
            (
                "6 heads over 2 of 64, blocks of 16",
                "10 heads over 2 of 64",
                "6 heads over 2 of 128",
                "a window of 1,024",
            ),
        ),
        ("reference.linear", projected, ("1024 to 1024", "2048 to 2048 with bias")),
        ("reference.fused_moe", crowded, ("GELU", "activation_alpha = 1.702", "up_offset = 1.0")),
    ],
)
def test_a_kernel_of_few_shapes_has_cases_of_its_own(
    id: str, supports: Any, labels: tuple[str, ...], bench: Bench
) -> None:
    spec: KernelSpec = replace(registered(id, bench), supports=supports)
    if spec.kind == "attention":
        spec = replace(spec, knows=spec.knows - {"latent_dim", "chunked", "causal"})
    found = {case.name: case for case in cases(spec.kind, spec, bench)}
    for label in labels:
        assert any(name.startswith(f"agrees with the reference: {label}") for name in found), list(found)
    for name in ("serves some of the suite's queries", "knows the fields that it declares"):
        assert Result.of(found[name]).outcome == "passed", Result.of(found[name]).message
    own = next(case for name, case in found.items() if name.startswith(f"agrees with the reference: {labels[0]}"))
    assert Result.of(own).outcome == "passed", Result.of(own).message


def test_a_kernel_that_serves_nothing_is_red(bench: Bench) -> None:
    spec = replace(registered("reference.attention", bench), supports=lambda query: no("shape"))
    found = next(Result.of(case) for case in cases(spec.kind, spec, bench) if case.name.startswith("serves some"))
    assert found.outcome == "failed"
    assert "supports refuses all" in found.message
