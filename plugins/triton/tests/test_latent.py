"""Latent attention against float32 attention over the same rows side by side, and its ops against their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from latent_steps import LatentStep, latent_query
from paged import BOUND, CHUNKED, DECODE, DEVICE, MIXED, STEPS, error
from torch import Tensor

from llmk.reference.composites import make_latent_attention, make_norm_rope_write_latent
from llmk.reference.linear import per_head_matmul
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import rope_interleaved
from llmk_triton.attention import prefill_schedule
from llmk_triton.common.targets import DecodeConfig, ExpansionTile, Tile
from llmk_triton.latent import expand
from llmk_triton.latent.backend import LatentAttention, latent_attention
from llmk_triton.latent.expand import Expansion, plan_expansion


def small(backend: LatentAttention, rows: int = 8) -> LatentAttention:
    """With tiles so small that short requests have several."""
    backend.prefill_tile = Tile(rows, 8, 1, 1)
    backend.few = backend.many = DecodeConfig(Tile(rows, 8, 1, 1), 4, 8)
    return backend


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("rope", [16, 0])
def test_agrees_with_plain_attention(step: str, rope: int) -> None:
    """With a shared key and without one, and with padding, which comes back as zeros."""
    case = LatentStep(latent_query(rope=rope), STEPS[step], padding=2)
    out = case.run(small(LatentAttention(case.query, DEVICE)))
    assert error(out[: case.num_tokens], case.expected()) < BOUND[torch.float32]
    assert out[case.num_tokens :].eq(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "latent", "rope", "block_size"), [(1, 256, 64, 1), (3, 512, 64, 16), (20, 40, 8, 5)])
def test_any_number_of_heads_and_size_of_row(
    heads: int, latent: int, rope: int, block_size: int, dtype: torch.dtype
) -> None:
    """With the default tiles."""
    query = latent_query(dtype, latent=latent, rope=rope, num_heads=heads, block_size=block_size)
    case = LatentStep(query, [(33, 1), (21, 9), (1, 1), (40, 3)])
    out = case.run(LatentAttention(query, DEVICE))
    assert out.dtype == dtype
    assert error(out, case.expected()) < BOUND[dtype]


@pytest.mark.parametrize("step", [DECODE[-2:], CHUNKED], ids=["decode", "chunked"])
def test_more_heads_than_a_tile_has_rows(step: list[tuple[int, int]]) -> None:
    query = latent_query(latent=16, rope=2, num_heads=70)
    case, backend = LatentStep(query, step), LatentAttention(query, DEVICE)
    assert backend.few.tile.rows < query.num_heads
    assert error(case.run(backend), case.expected()) < BOUND[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("longest", [0, 1000])
def test_splits(longest: int) -> None:
    """Few requests are split, of equal and of very unlike length; an upper bound beyond them all changes nothing."""
    case = LatentStep(latent_query(), [(270, 1), (1, 1), (9, 1)], longest=longest)
    backend = small(LatentAttention(case.query, DEVICE))
    meta, cache = backend.prepare(case.index), case.cache(backend)
    assert meta.schedule is not None
    assert meta.schedule.spans.diff().tolist() == [34, 1, 2]
    backend.write(case.new_kv()[0], None, cache, meta)
    first = backend.run(case.q, cache, meta)
    assert error(first, case.expected()) < BOUND[torch.float32]
    assert torch.equal(backend.run(case.q, cache, meta), first), "the next layer can use the same metadata"


@pytest.mark.slow
@pytest.mark.parametrize("prefill", [[], [(30, 9)]], ids=["decode", "mixed"])
def test_teams_read_shared_prefixes_once(prefill: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tile has more rows than there are heads, requests share programs."""
    monkeypatch.setattr("llmk_triton.attention.decode_schedule._LEAST_SHARED", 16)
    requests = [*prefill, *((n, 1) for n in (25, 40, 26, 25, 31, 70, 24, 25, 25))]
    case = LatentStep(latent_query(num_heads=3), requests, shared=5, padding=3)
    backend = small(LatentAttention(case.query, DEVICE), rows=16)
    schedule = backend.prepare(case.index).schedule
    assert schedule is not None
    assert set(schedule.items[1 : 1 + int(schedule.items[0, 0]), 7].tolist()) == {1, 4}
    out = case.run(backend)[: case.num_tokens]
    assert error(out, case.expected()) < BOUND[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("requests", [[(90, 5)], [(90, 5), (17, 1), (30, 9), (4, 4)]], ids=str)
def test_keys_of_prompts_are_split_where_tiles_are_few(
    requests: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_schedule, "LEAST_KEYS", 3)
    case = LatentStep(latent_query(), requests, padding=2)
    backend = small(LatentAttention(case.query, DEVICE))
    meta, cache = backend.prepare(case.index), case.cache(backend)
    assert meta.prefills is not None
    assert meta.prefills.parts.max() > 1
    backend.write(case.new_kv()[0], None, cache, meta)
    first = backend.run(case.q, cache, meta)
    assert error(first[: case.num_tokens], case.expected()) < BOUND[torch.float32]
    assert meta.prefills.arrived.eq(0).all(), "the next layer can count"
    assert torch.equal(backend.run(case.q, cache, meta), first)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_an_fp8_cache(step: str) -> None:
    """Of rows as fp8 rounds them, for any scale; in float32, where scaling queries rounds nothing."""
    query = latent_query(cache_dtype="float8_e4m3fn")
    case = LatentStep(query, STEPS[step], scales=(0.3, 1.0))
    case.kv = [kv.to(torch.float8_e4m3fn).float() for kv in case.kv]
    assert error(case.run(small(LatentAttention(query, DEVICE))), case.expected()) < BOUND[torch.float32]


def test_a_layers_cache_may_be_strided_along_blocks() -> None:
    case = LatentStep(latent_query(), MIXED)
    backend = small(LatentAttention(case.query, DEVICE))
    assert error(case.run(backend, stride=3), case.expected()) < BOUND[torch.float32]


def test_launches_depend_only_on_shapes_and_bounds() -> None:
    """Of two steps that differ in nothing else, one may be replayed for the other."""
    query, shapes = latent_query(), []
    for requests in ([(70, 1), (20, 1), (3, 1)], [(5, 1), (6, 1), (7, 1)]):
        meta = LatentAttention(query, DEVICE).prepare(LatentStep(query, requests, longest=70).index)
        assert meta.schedule is not None
        tensors = (meta.partial, meta.stats, meta.schedule.items, meta.schedule.spans)
        shapes.append([tensor.shape for tensor in tensors if tensor is not None])
    assert shapes[0] == shapes[1]


def given(case: LatentStep, key: int, value: int) -> dict[str, Any]:
    """Random arguments of the whole op."""
    query, rows = case.query, case.q.shape[0]
    latent = query.latent_dim or 0
    rope = query.head_dim - latent
    random = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(case.q.dtype)

    angles = 6.28 * torch.rand(50, rope // 2, generator=random)
    # As a packed projection returns them.
    packed = normal(rows, 7 + latent + rope)
    return {
        "q": normal(rows, query.num_heads, key + rope),
        "latent": packed[:, 7:],
        "norm_weight": normal(latent),
        "eps": 1e-6,
        "k_up": normal(query.num_heads, key, latent) / key**0.5,
        "v_up": normal(query.num_heads, latent, value) / latent**0.5,
        "positions": torch.randint(0, 50, (rows,), generator=random),
        "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
    }


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("rope", "key", "dtype"), [(16, 32, torch.float32), (0, 24, torch.float32), (8, 20, torch.bfloat16)]
)
def test_one_op_for_all_agrees_with_its_parts(step: str, rope: int, key: int, dtype: torch.dtype) -> None:
    """Padding is written nowhere. Steps of few decodes have a kernel of their own, those of more don't."""
    requests = STEPS[step] + [(7, 1)] * 5 * (rope == 0 and step == "decode")
    case = LatentStep(latent_query(dtype, rope=rope), requests, padding=2)
    backend, args = small(LatentAttention(case.query, DEVICE)), given(case, key, 24)
    caches = [case.cache(backend, stride=2) for _ in range(2)]
    meta = backend.prepare(case.index)
    plain = {"rms_norm": rms_norm, "rope_interleaved": rope_interleaved, "attention.write": backend.write}
    parts = {"norm_rope_write_latent": make_norm_rope_write_latent(plain), "per_head_matmul": per_head_matmul}
    reference = make_latent_attention({**parts, "attention.run": backend.run})
    out = latent_attention(*args.values(), caches[0], meta)
    expected = reference(*args.values(), caches[1], meta)
    assert out.shape == expected.shape
    assert error(out[: case.num_tokens], expected[: case.num_tokens]) < BOUND[dtype]
    caches = [cache.float() for cache in caches]
    assert torch.equal(caches[0].isnan(), caches[1].isnan()), "another slot than the step's own was written"
    assert error(caches[0].nan_to_num(), caches[1].nan_to_num()) < BOUND[dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("rope", "dtype"), [(16, torch.float32), (0, torch.float32), (8, torch.bfloat16)])
@pytest.mark.parametrize("requests", [[(35, 35), (9, 9)], [(20, 17), (17, 1), (70, 20), (1, 1), (2, 2)]], ids=str)
def test_prompts_over_projected_keys_and_values(
    requests: list[tuple[int, int]], rope: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as with absorbed queries, alone, next to decodes, and after a prefix in the cache."""
    case = LatentStep(latent_query(dtype, rope=rope, num_heads=2), requests)
    lengths, counts = zip(*requests, strict=True)
    case.index.host_query_lens, case.index.host_seq_lens = counts, lengths
    backend, args = small(LatentAttention(case.query, DEVICE)), given(case, 20, 24)
    backend.expanded_tile = Tile(16, 16, 1, 1)
    monkeypatch.setattr(expand, "expansion_tile", lambda target: ExpansionTile(16, 32, 1, 1))
    outs, caches = [], [case.cache(backend, stride=2) for _ in range(2)]
    for pays, cache in zip((True, False), caches, strict=True):
        monkeypatch.setattr(Expansion, "pays", lambda *of, pays=pays: pays)
        outs.append(latent_attention(*args.values(), cache, backend.prepare(case.index)))
    assert error(*outs) < 2 * BOUND[dtype]
    assert torch.equal(caches[0].nan_to_num(), caches[1].nan_to_num())


def test_projecting_pays_where_many_queries_see_a_key() -> None:
    k_up, v_up = torch.empty(16, 128, 512, device="meta"), torch.empty(16, 512, 128, device="meta")

    def pays(*requests: tuple[int, int]) -> bool:
        case = LatentStep(latent_query(), requests)
        case.index.host_query_lens = [count for _, count in requests]
        case.index.host_seq_lens = [length for length, _ in requests]
        return plan_expansion(case.index).pays(k_up, v_up)

    assert pays((400, 400))
    assert pays((1200, 300), (9, 1))
    assert not pays((300, 300))
    assert not pays((1200, 100))
