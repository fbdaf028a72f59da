"""The way of queries, keys and values into the cache, against the composite that the reference makes of its parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged import DEVICE, Step, attention_query
from test_elementwise import random, same

from llmk.reference.composites import make_qk_norm_rope_write_kv
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import rope
from llmk_triton.attention.backend import TritonAttention
from llmk_triton.attention.write import qk_norm_rope_write_kv

REQUESTS = [(9, 4), (5, 1), (6, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", ["both", "offset", "queries", "none", "after", "shared"])
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize(("heads", "kv_heads", "size", "rotary"), [(6, 2, 24, 24), (5, 1, 20, 12), (5, 1, 20, 0)])
def test_agrees_with_the_parts(
    heads: int, kv_heads: int, size: int, rotary: int, pairs: str, weights: str, dtype: torch.dtype
) -> None:
    query = attention_query(dtype, num_heads=heads, num_kv_heads=kv_heads, head_dim=size)
    step, backend = Step(query, REQUESTS, padding=2), TritonAttention(query, DEVICE)
    tokens = step.q.shape[0]
    qkv = random(dtype, tokens, heads + 2 * kv_heads, size)
    q_weight = None if weights == "none" else random(dtype, size, seed=1)
    k_weight = random(dtype, size, seed=2) if weights in ("both", "offset", "after") else None
    options: dict[str, Any] = {"norm_offset": 1.0} if weights == "offset" else {}
    options |= {"norm_after_rope": True} if weights == "after" else {}
    options |= {"neighbours": True} if pairs == "neighbours" else {}
    angles, positions = torch.randn(50, rotary) if rotary else None, torch.randint(0, 50, (tokens,))
    caches = [step.cache(backend, stride=3) for _ in range(2)]
    meta = backend.prepare(step.index)
    parts = {"rms_norm": rms_norm, "rope": rope, "attention.write": backend.write}
    rotated = []
    for op, cache in zip((qk_norm_rope_write_kv, make_qk_norm_rope_write_kv(parts)), caches, strict=True):
        split = qkv.split_with_sizes([heads, kv_heads, kv_heads], 1)
        split = (split[0], None, None) if weights == "shared" else split
        rotated.append(op(*split, q_weight, k_weight, 1e-6, positions, angles, cache, meta, **options))
    same(*rotated)
    assert torch.equal(caches[0].isnan(), caches[1].isnan()), "another slot than the step's own was written"
    same(caches[0].nan_to_num(), caches[1].nan_to_num())


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "float16"])
def test_a_plain_write_stores_the_tokens_and_nothing_else(cache_dtype: str) -> None:
    query = attention_query(cache_dtype=cache_dtype)
    step, backend = Step(query, REQUESTS, padding=3), TritonAttention(query, DEVICE)
    cache = step.cache(backend, stride=2)
    before = cache.clone()
    key, value = step.new_kv()
    backend.write(key, value, cache, backend.prepare(step.index))
    slots = step.index.slot_mapping[: step.num_tokens]
    size = query.block_size
    for kind, new in enumerate((key, value)):
        assert torch.equal(cache[slots // size, kind, :, slots % size], new[: step.num_tokens].to(cache.dtype))
    cache[slots // size, :, :, slots % size] = before[slots // size, :, :, slots % size]
    assert torch.equal(cache.isnan(), before.isnan())
