"""Native attention against the reference, at every level of instructions that this machine has."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from attention_steps import blocks_of, query_of, step_of
from levels import LIBRARY, at_level
from torch import Tensor

from llmk.api import AttentionQuery
from llmk.reference.attention.paged import ReferenceAttention
from llmk.reference.compare import relative_error
from llmk_cpu.native.library import library

BOUND = {"float32": 1e-5, "bfloat16": 4e-3, "float16": 1e-3}
LENGTHS, QUERIES = [1, 17, 300, 1025, 63, 517], [1, 17, 1, 1, 5, 260]
"""Decode, prefill and chunked prefill in one step; chunks of 256 keys are whole, cut and several."""
KINDS: dict[str, dict[str, Any]] = {
    "grouped": {"num_heads": 16, "num_kv_heads": 8, "head_dim": 128},
    "one key head": {"num_heads": 7, "num_kv_heads": 1, "head_dim": 40, "block_size": 48},
    "more rows than a tile": {"num_heads": 40, "num_kv_heads": 1, "head_dim": 64},
    "window": {"sliding_window": 50, "block_size": 32},
    "long window": {"sliding_window": 300},
    "capped": {"softcap": 30.0, "sinks": True},
    "everything": {
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 33,
        "sliding_window": 7,
        "softcap": 9.0,
        "sinks": True,
    },
    "narrow values": {"head_dim": 48, "value_dim": 20},
    "a cache of its own dtype": {"cache_dtype": "bfloat16"},
    "a cache of fp8": {"cache_dtype": "float8_e4m3fn", "head_dim": 40, "sinks": True},
    "a cache of int8": {"cache_dtype": "int8", "head_dim": 33, "value_dim": 20, "block_size": 32},
    "a window of int8": {"cache_dtype": "int8", "num_heads": 16, "num_kv_heads": 1, "sliding_window": 50},
}

EIGHT_BITS = [kind for kind, fields in KINDS.items() if fields.get("cache_dtype") in ("float8_e4m3fn", "int8")]


class Case:
    """Random queries, keys and values of all tokens of all requests."""

    def __init__(self, query: AttentionQuery) -> None:
        self.query, dtype = query, getattr(torch, query.dtype)
        tokens, kv_heads = sum(LENGTHS), query.num_kv_heads
        self.q = torch.randn(tokens, query.num_heads, query.head_dim).to(dtype)
        self.k = torch.randn(tokens, kv_heads, query.head_dim).to(dtype)
        self.v = torch.randn(tokens, kv_heads, query.value_dim or query.head_dim).to(dtype)
        self.sinks = torch.randn(query.num_heads) if query.sinks else None

    def run(self, backend: Any) -> Tensor:
        """Writes all tokens to a cache of NaN, then attends with the last of each request."""
        layout = backend.cache_layout(blocks_of(self.query, LENGTHS))
        size = getattr(torch, layout.dtype).itemsize * prod(layout.shape)
        cache = torch.full([size], 255, dtype=torch.uint8).view(getattr(torch, layout.dtype)).view(layout.shape)
        scales = {"scales": (0.5, 0.25)} if self.query.cache_dtype.startswith("float8") else {}
        backend.write(self.k, self.v, cache, backend.prepare(step_of(self.query, LENGTHS, LENGTHS)), **scales)
        ends = torch.tensor(LENGTHS).cumsum(0).tolist()
        rows = torch.cat([self.q[end - asked : end] for end, asked in zip(ends, QUERIES, strict=True)])
        step = backend.prepare(step_of(self.query, LENGTHS, QUERIES))
        out: Tensor = backend.run(rows, cache, step, self.sinks, **scales)
        return out


@pytest.mark.parametrize("level", LIBRARY.levels)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_reference(kind: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(query_of(**KINDS[kind]))
    with at_level(level, monkeypatch) as modules:
        found = case.run(modules["attention"].NativeAttention(case.query, torch.device("cpu")))
    expected = case.run(ReferenceAttention(case.query, torch.device("cpu")))
    assert relative_error(found, expected) < BOUND["float32"]


@pytest.mark.parametrize("level", LIBRARY.levels)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["grouped", "one key head", "capped", "everything", *EIGHT_BITS])
def test_in_16_bits(kind: str, dtype: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and sums are float32, so that only the inputs and the result are rounded."""
    case = Case(query_of(dtype, **KINDS[kind]))
    with at_level(level, monkeypatch) as modules:
        found = case.run(modules["attention"].NativeAttention(case.query, torch.device("cpu")))
    wide = replace(case.query, dtype="float32", cache_dtype=KINDS[kind].get("cache_dtype", "float32"))
    case.q, case.k, case.v = case.q.float(), case.k.float(), case.v.float()
    expected = case.run(ReferenceAttention(wide, torch.device("cpu")))
    assert found.dtype == getattr(torch, dtype)
    assert relative_error(found.float(), expected) < BOUND[dtype]


def test_the_result_is_the_same_with_any_number_of_threads() -> None:
    """With one thread, chunks are merged as they are computed; with eight, long requests are split."""
    from llmk_cpu.native.attention import NativeAttention

    case = Case(query_of(num_heads=2, num_kv_heads=1))
    backend, before = NativeAttention(case.query, torch.device("cpu")), library().threads
    results = []
    try:
        for threads in (1, 2, 8):
            library().set_threads(threads)
            results.append(case.run(backend))
    finally:
        library().set_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_token_is_the_same_in_a_prompt_in_a_part_of_it_and_alone(dtype: str) -> None:
    from llmk_cpu.native.attention import NativeAttention

    query, length = query_of(dtype), 300
    backend = NativeAttention(query, torch.device("cpu"))
    layout = backend.cache_layout(blocks_of(query, [length]))
    cache = torch.randn(layout.shape).to(getattr(torch, layout.dtype))
    q = torch.randn(length, query.num_heads, query.head_dim).to(getattr(torch, dtype))

    def run(end: int, count: int) -> Tensor:
        step = replace(step_of(query, [length], [count]), seq_lens=torch.tensor([end]).int())
        return backend.run(q[end - count : end], cache, backend.prepare(step))

    whole = run(length, length)
    assert torch.equal(run(length, 45), whole[-45:])
    for end in (1, 16, 17, 256, 257, 300):
        assert torch.equal(run(end, 1)[0], whole[end - 1])
