"""Paged attention against float32 attention over the same keys and values side by side."""

from __future__ import annotations

from typing import Any

import interpreter
import pytest
import torch
from paged import DEVICE, Step, attention_query, error
from triton.runtime.interpreter import InterpreterBuilder

from llmk_triton.attention import TritonAttention
from llmk_triton.tiles import Tile

BOUND = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}
DECODE = [(n, 1) for n in (1, 3, 4, 5, 8, 33)]
CHUNKED = [(9, 4), (8, 4), (31, 7), (6, 5)]
MIXED = [(17, 1), (21, 21), (4, 1), (19, 6), (40, 1)]
STEPS = {"decode": DECODE, "chunked": CHUNKED, "mixed": MIXED}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 6},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 5, "softcap": 1.5, "sinks": True},
    "deterministic": {"deterministic": True},
}


def small(backend: TritonAttention) -> TritonAttention:
    """With tiles so small that short requests have several."""
    backend.prefill_tile, backend.decode_tile = Tile(16, 8, 1, 1), Tile(4, 8, 1, 1)
    return backend


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_agrees_with_plain_attention(step: str, kind: str) -> None:
    case = Step(attention_query(**KINDS[kind]), STEPS[step])
    out = case.run(small(TritonAttention(case.query, DEVICE)))
    assert error(out, case.expected()) < BOUND[torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("step", ["decode", "mixed"])
def test_in_16_bits_with_the_tiles_that_ship(step: str, dtype: torch.dtype) -> None:
    case = Step(attention_query(dtype), STEPS[step])
    out = case.run(TritonAttention(case.query, DEVICE))
    assert out.dtype == dtype
    assert error(out, case.expected()) < BOUND[dtype]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"), [(1, 1, 8, 1), (3, 3, 16, 16), (7, 1, 40, 5), (4, 2, 128, 32)]
)
def test_any_number_of_heads_and_size_of_block(heads: int, kv_heads: int, head_dim: int, block_size: int) -> None:
    query = attention_query(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    case = Step(query, [(17, 1), (21, 9), (40, 1)])
    assert error(case.run(TritonAttention(query, DEVICE)), case.expected()) < BOUND[torch.float32]


def test_a_cache_of_another_dtype_than_the_queries() -> None:
    case = Step(attention_query(cache_dtype="bfloat16"), [(17, 1), (21, 9)])
    assert error(case.run(TritonAttention(case.query, DEVICE)), case.expected()) < BOUND[torch.float32]


@pytest.mark.parametrize("step", STEPS)
def test_padding_comes_back_as_zeros(step: str) -> None:
    case = Step(attention_query(sinks=True), STEPS[step], padding=2)
    out = case.run(small(TritonAttention(case.query, DEVICE)))
    assert error(out[: case.num_tokens], case.expected()) < BOUND[torch.float32]
    assert out[case.num_tokens :].eq(0).all()


def test_a_layers_cache_may_be_strided_along_blocks() -> None:
    case = Step(attention_query(), MIXED)
    assert error(case.run(TritonAttention(case.query, DEVICE), stride=3), case.expected()) < BOUND[torch.float32]


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("longest", [0, 1000])
def test_splits(longest: int, window: int | None) -> None:
    """Few requests are split, of equal and of very unlike length; an upper bound beyond them all changes nothing."""
    case = Step(attention_query(sliding_window=window, sinks=True), [(70, 1), (1, 1), (9, 1)], longest=longest)
    backend = small(TritonAttention(case.query, DEVICE))
    meta = backend.prepare(case.index)
    assert meta.splits > 3
    assert error(case.run(backend), case.expected()) < BOUND[torch.float32]


def test_long_requests_are_split_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmk_triton.attention._LONGEST_SPLIT", 16)
    case = Step(attention_query(), [(70, 1), (5, 1), (33, 1)])
    backend = small(TritonAttention(case.query, DEVICE))
    backend.programs_per_core = 0
    meta = backend.prepare(case.index)
    assert (meta.parallel, meta.splits) == (1, 5)
    assert error(case.run(backend), case.expected()) < BOUND[torch.float32]


def test_counters_are_zero_again() -> None:
    """So that a captured step can be replayed."""
    case = Step(attention_query(), [(70, 1), (20, 1)])
    backend = small(TritonAttention(case.query, DEVICE))
    meta, cache = backend.prepare(case.index), case.cache(backend)
    backend.write(*case.new_kv(), cache, meta)
    first = backend.run(case.q, cache, meta)
    assert meta.arrived is not None
    assert meta.arrived.eq(0).all()
    assert torch.equal(backend.run(case.q, cache, meta), first)


@pytest.mark.parametrize("kind", ["plain", "all"])
def test_deterministic_rows_do_not_depend_on_the_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or beside others, in one chunk or in several."""
    monkeypatch.setattr(InterpreterBuilder, "create_dot", interpreter.row_by_row_dot)
    query = attention_query(deterministic=True, **KINDS[kind])
    backend = small(TritonAttention(query, DEVICE))
    whole = Step(query, [(31, 31), (12, 1)])
    out = whole.run(backend)
    for queries in (1, 7):
        part = Step(query, [(31, queries)])
        part.kv, part.sinks = whole.kv[:1], whole.sinks
        part.q = whole.q[31 - queries : 31]
        assert torch.equal(part.run(backend), out[31 - queries : 31])


def test_a_step_of_nothing_but_padding() -> None:
    case = Step(attention_query(), [(5, 0), (3, 0)], padding=2)
    case.index.max_query_len = 1
    assert case.run(TritonAttention(case.query, DEVICE)).eq(0).all()


def test_nothing_reads_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing looks at shapes and bounds alone: on tensors without data it gives the same."""
    case = Step(attention_query(), MIXED)
    backend = TritonAttention(case.query, DEVICE)
    expected = backend.prepare(case.index)
    for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
        setattr(case.index, name, getattr(case.index, name).to("meta"))
    meta = backend.prepare(case.index)
    assert (meta.decodes, meta.prefills, meta.parallel, meta.splits) == (
        expected.decodes,
        expected.prefills,
        expected.parallel,
        expected.splits,
    )
