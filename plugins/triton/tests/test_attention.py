"""Paged attention against float32 attention over the same keys and values side by side."""

from __future__ import annotations

from typing import Any

import interpreter
import pytest
import torch
from paged import BOUND, DECODE, DEVICE, MIXED, STEPS, Step, attention_query, error
from triton.runtime.interpreter import InterpreterBuilder

from llmk.reference.composites import make_qk_norm_rope_write_kv
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import rope
from llmk_testing.paged import Paged, decode, history
from llmk_triton.attention import prefill_schedule
from llmk_triton.attention.backend import TritonAttention, qk_norm_rope_attention
from llmk_triton.attention.int8_cache import Int8Attention
from llmk_triton.common.targets import DecodeConfig, Tile

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 6},
    "chunks": {"sliding_window": 8, "chunked": True},
    "odd chunks": {"sliding_window": 5, "chunked": True, "sinks": True},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 5, "softcap": 1.5, "sinks": True},
    "deterministic": {"deterministic": True},
}
OPS = ("plain", "window", "softcap", "fp8 cache", "unrotated", "sinks", "neighbours", "normed after")


def small(backend: TritonAttention) -> TritonAttention:
    """With tiles so small that short requests have several."""
    backend.prefill_tile = Tile(16, 8, 1, 1)
    backend.few = backend.many = DecodeConfig(Tile(4, 8, 1, 1), 4, 8)
    return backend


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_agrees_with_plain_attention(step: str, kind: str) -> None:
    case = Step(attention_query(**KINDS[kind]), STEPS[step])
    out = case.run(small(TritonAttention(case.query, DEVICE)))
    assert error(out, case.expected()) < BOUND[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "all"])
@pytest.mark.parametrize("step", STEPS)
def test_an_fp8_cache(step: str, kind: str) -> None:
    """With keys as fp8 rounds them, for any scales; in float32, where scaling queries rounds nothing."""
    query = attention_query(cache_dtype="float8_e4m3fn", **KINDS[kind])
    case = Step(query, STEPS[step], scales=(0.3, 3.0))
    case.kv = [kv.to(torch.float8_e4m3fn).float() for kv in case.kv]
    assert error(case.run(small(TritonAttention(query, DEVICE))), case.expected()) < BOUND[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["plain", "all", "deterministic"])
def test_an_int8_cache(kind: str, dtype: torch.dtype) -> None:
    """A prompt, chunks and decodes, whose keys and values are written as the contract says."""
    query = attention_query(dtype, cache_dtype="int8", **KINDS[kind])
    random = torch.Generator().manual_seed(0)
    paged = Paged(query, small(Int8Attention(query, DEVICE)), DEVICE, random, requests=3, longest=40)
    for work in (history(21, 9, 4), [(0, 21, 27), (1, 9, 10), (2, 4, 5)], decode(27, 10, 5)):
        paged.check(paged.play(work), work, kind)


def test_an_fp8_cache_holds_no_more_than_fp8_does() -> None:
    case = Step(attention_query(cache_dtype="float8_e4m3fn"), [(9, 4), (5, 1)], scales=(2.0, 0.5))
    case.kv = [torch.full_like(kv, 1e6) for kv in case.kv]
    out = case.run(small(TritonAttention(case.query, DEVICE)))
    torch.testing.assert_close(out, torch.full_like(out, 448 * 0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("step", ["decode", "mixed"])
def test_in_16_bits_with_the_default_tiles(step: str, dtype: torch.dtype) -> None:
    case = Step(attention_query(dtype), STEPS[step])
    out = case.run(TritonAttention(case.query, DEVICE))
    assert out.dtype == dtype
    assert error(out, case.expected()) < BOUND[dtype]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"), [(1, 1, 8, 1), (3, 3, 16, 16), (7, 1, 40, 5), (4, 2, 128, 32)]
)
def test_any_number_of_heads_and_size_of_block(heads: int, kv_heads: int, head_dim: int, block_size: int) -> None:
    query = attention_query(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    case = Step(query, [(17, 1), (21, 9), (40, 1)])
    assert error(case.run(TritonAttention(query, DEVICE)), case.expected()) < BOUND[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_heads_as_wide_as_those_of_gemma_4(step: str) -> None:
    query = attention_query(torch.bfloat16, num_heads=4, num_kv_heads=1, head_dim=512, block_size=16)
    case = Step(query, STEPS[step])
    assert error(case.run(TritonAttention(query, DEVICE)), case.expected()) < BOUND[torch.bfloat16]


@pytest.mark.slow
def test_more_heads_per_key_head_than_fill_a_tile_of_float32() -> None:
    """As in Falcon 7B, which has 71."""
    query = attention_query(torch.bfloat16, num_heads=71, num_kv_heads=1, head_dim=64)
    case = Step(query, [(17, 1), (21, 9), (900, 1)])
    assert error(case.run(TritonAttention(query, DEVICE)), case.expected()) < BOUND[torch.bfloat16]


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


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("longest", [0, 1000])
def test_splits(longest: int, window: int | None) -> None:
    """Few requests are split, of equal and of very unlike length; an upper bound beyond them all changes nothing."""
    case = Step(attention_query(sliding_window=window, sinks=True), [(70, 1), (1, 1), (9, 1)], longest=longest)
    assert error(case.run(small(TritonAttention(case.query, DEVICE))), case.expected()) < BOUND[torch.float32]


def test_a_program_takes_several_items_where_the_device_has_room_for_few() -> None:
    case, backend = Step(attention_query(), DECODE, padding=1), small(TritonAttention(attention_query(), DEVICE))
    backend.few = backend.many = DecodeConfig(backend.few.tile, 0, 8)
    schedule = backend.prepare(case.index).schedule
    assert schedule is not None
    assert schedule.programs == 1
    assert error(case.run(backend)[: case.num_tokens], case.expected()) < BOUND[torch.float32]


def test_counters_are_reset() -> None:
    """So that the next layer can count."""
    case = Step(attention_query(), [(70, 1), (20, 1)])
    backend = small(TritonAttention(case.query, DEVICE))
    meta, cache = backend.prepare(case.index), case.cache(backend)
    backend.write(*case.new_kv(), cache, meta)
    first = backend.run(case.q, cache, meta)
    assert meta.schedule is not None
    assert meta.schedule.arrived.eq(0).all()
    assert torch.equal(backend.run(case.q, cache, meta), first)


@pytest.mark.parametrize("kind", ["plain", "all"])
def test_deterministic_rows_do_not_depend_on_the_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or with others, in one chunk or in several."""
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(24, 16), (20, 40)])
def test_values_of_another_width(head_dim: int, value_dim: int, step: str, kind: str, dtype: torch.dtype) -> None:
    query = attention_query(dtype, head_dim=head_dim, value_dim=value_dim, **KINDS[kind])
    case = Step(query, STEPS[step], padding=2)
    backend = TritonAttention(query, DEVICE)
    out = case.run(small(backend) if dtype == torch.float32 else backend, stride=2)
    assert out.shape[1:] == (6, value_dim)
    assert error(out[: case.num_tokens], case.expected()) < BOUND[dtype]
    assert not out[case.num_tokens :].any()


def test_a_step_of_nothing_but_padding() -> None:
    case = Step(attention_query(), [(5, 0), (3, 0)], padding=2)
    case.index.max_query_len = 1
    assert case.run(TritonAttention(case.query, DEVICE)).eq(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("step", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        *("plain", "window", "chunks", "softcap", "fp8 cache", "unrotated", "sinks", "neighbours", "normed after"),
        *("wide values", "shared"),
    ],
)
def test_one_op_for_all_agrees_with_its_parts(kind: str, dtype: torch.dtype, step: list[tuple[int, int]]) -> None:
    """Padding is written nowhere; split or not, the newest token is seen. Parts round a key once more than the op does,
    which is a step of fp8 where it falls on another side."""
    fp8 = kind == "fp8 cache"
    wide = {"value_dim": 28} if kind == "wide values" else {}
    query = attention_query(dtype, **{"cache_dtype": "float8_e4m3fn"} if fp8 else KINDS.get(kind, wide))
    case, backend = Step(query, step, padding=2), small(TritonAttention(query, DEVICE))
    rows, rotary = case.q.shape[0], 16
    qkv = torch.randn(rows, query.num_heads + 2 * query.num_kv_heads, query.head_dim).to(dtype)
    q, k, v = qkv.split_with_sizes((query.num_heads, query.num_kv_heads, query.num_kv_heads), 1)
    split = (q, k, torch.randn(rows, query.num_kv_heads, 28).to(dtype) if wide else v)
    split = (q, None, None) if kind == "shared" else split
    q_weight, k_weight = torch.randn(2, query.head_dim).to(dtype)
    angles = 2 * torch.pi * torch.rand(50, rotary // 2)
    cos_sin = None if kind == "unrotated" else torch.cat((angles.cos(), angles.sin()), dim=1)
    given = (*split, q_weight, k_weight, 1e-6, torch.randint(0, 50, (rows,)), cos_sin)
    caches = [case.cache(backend, stride=2) for _ in range(2)]
    meta = backend.prepare(case.index)
    if kind == "shared":
        for cache in caches:
            backend.write(*case.new_kv(), cache, meta)
    scaled: dict[str, Any] = {"scales": (0.02, 0.01)} if fp8 else {}
    turned: dict[str, Any] = {"norm_offset": 1.0} if kind == "softcap" else {}
    turned |= {"neighbours": True} if kind == "neighbours" else {}
    turned |= {"norm_after_rope": True} if kind == "normed after" else {}
    sinks = {"sinks": torch.randn(query.num_heads)} if query.sinks else {}
    out = qk_norm_rope_attention(*given, caches[0], meta, **scaled, **turned, **sinks)
    write = make_qk_norm_rope_write_kv({"rms_norm": rms_norm, "rope": rope, "attention.write": backend.write})
    expected = backend.run(write(*given, caches[1], meta, **scaled, **turned), caches[1], meta, **scaled, **sinks)
    bound = 0.02 if fp8 else BOUND[dtype]
    assert error(out[: case.num_tokens], expected[: case.num_tokens]) < bound
    caches = [cache.float() for cache in caches]
    assert torch.equal(caches[0].isnan(), caches[1].isnan()), "another slot than the step's own was written"
    assert error(caches[0].nan_to_num(), caches[1].nan_to_num()) < bound


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("prefill", [[], [(30, 9)]], ids=["decode", "mixed"])
def test_teams_read_shared_prefixes_once(
    padding: int, prefill: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmk_triton.attention.decode_schedule._LEAST_SHARED", 16)
    requests = [*prefill, *((n, 1) for n in (25, 40, 26, 25, 31, 70, 24, 25, 25, 29, 27))]
    case = Step(attention_query(sinks=True), requests, shared=5, padding=padding)
    backend = TritonAttention(case.query, DEVICE)
    backend.few = backend.many = DecodeConfig(Tile(16, 8, 1, 1), 4, 8)
    schedule = backend.prepare(case.index).schedule
    assert schedule is not None
    items = schedule.items[1 : 1 + int(schedule.items[0, 0])]
    assert set(items[:, 7].tolist()) == {1, 4}
    out = case.run(backend)[: case.num_tokens]
    assert error(out, case.expected()) < BOUND[torch.float32]


def test_launches_depend_only_on_shapes_and_bounds() -> None:
    """Of two steps that differ in nothing else, one may be replayed for the other."""
    query = attention_query()
    shapes = []
    for requests in ([(70, 1), (20, 1), (3, 1)], [(5, 1), (6, 1), (7, 1)]):
        meta = TritonAttention(query, DEVICE).prepare(Step(query, requests, longest=70).index)
        assert meta.schedule is not None
        tensors = (meta.partial, meta.stats, meta.schedule.items, meta.schedule.spans, meta.schedule.arrived)
        shapes.append([tensor.shape for tensor in tensors if tensor is not None])
    assert shapes[0] == shapes[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "window", "chunks", "odd chunks", "all"])
@pytest.mark.parametrize("requests", [[(90, 5)], [(90, 5), (17, 1), (30, 9), (4, 4)], [(64, 64), (3, 2)]], ids=str)
def test_keys_of_prompts_are_split_where_tiles_are_few(
    requests: list[tuple[int, int]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_schedule, "LEAST_KEYS", 3)
    options = KINDS[kind] | ({"sliding_window": 40} if "sliding_window" in KINDS[kind] else {})
    case = Step(attention_query(**options), requests, padding=2)
    backend = small(TritonAttention(case.query, DEVICE))
    meta, cache = backend.prepare(case.index), case.cache(backend)
    assert meta.prefills is not None
    assert len(requests) > 2 or kind != "plain" or meta.prefills.parts.max() > 1
    backend.write(*case.new_kv(), cache, meta)
    first = backend.run(case.q, cache, meta, case.sinks)
    assert error(first[: case.num_tokens], case.expected()) < BOUND[torch.float32]
    assert meta.prefills.arrived.eq(0).all(), "the next layer can count"
    assert torch.equal(backend.run(case.q, cache, meta, case.sinks), first)
