"""The fused ops over attention are the same as their parts one after the other, and call the parts that they were
given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.attention.paged import AttentionMeta, ReferenceAttention
from llmk.reference.composites import (
    make_latent_attention,
    make_norm_rope_write_latent,
    make_qk_norm_rope_attention,
    make_qk_norm_rope_write_kv,
)
from llmk.reference.linear import per_head_matmul
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import cos_sin_cache, rope, rope_interleaved

PLACES = [(2, 2), (2, 3), (0, 0)]
"""Block and offset of the step's three tokens, which follow two others."""
POSITIONS = torch.tensor([2, 3, 4])


def prepared(**sizes: Any) -> tuple[ReferenceAttention, AttentionMeta, Tensor]:
    """A backend, a step of three tokens, and a cache of three blocks of four tokens."""
    spec = AttentionQuery(
        platform=PlatformFacts(name="test", arch="any", device_type="cpu"),
        site="attention",
        dtype="float32",
        block_size=4,
        cache_dtype="float32",
        scale=0.25,
        **sizes,
    )
    backend = ReferenceAttention(spec, torch.device("cpu"))
    meta = backend.prepare(
        CacheStep(
            query_start=torch.tensor([0, 3], dtype=torch.int32),
            seq_lens=torch.tensor([5], dtype=torch.int32),
            block_table=torch.tensor([[2, 0]], dtype=torch.int32),
            slot_mapping=torch.tensor([block * 4 + offset for block, offset in PLACES]),
            num_requests=1,
            num_tokens=3,
            max_query_len=3,
            max_seq_len=5,
            block_size=4,
        )
    )
    return backend, meta, torch.zeros(backend.cache_layout(3).shape)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("offset", [{}, {"norm_offset": 1.0}], ids=str)
def test_qk_norm_rope_write_kv(normed: bool, offset: dict[str, float]) -> None:
    backend, meta, cache = prepared(num_heads=4, num_kv_heads=2, head_dim=16)
    q, k, v = torch.randn(3, 4, 16), torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    q_weight, k_weight = (torch.randn(16), torch.randn(16)) if normed else (None, None)
    table = cos_sin_cache({}, 16, 8, 1e4)

    op = make_qk_norm_rope_write_kv({"rms_norm": rms_norm, "rope": rope, "attention.write": backend.write})
    out = op(q, k, v, q_weight, k_weight, 1e-6, POSITIONS, table, cache, meta, **offset)

    if q_weight is not None and k_weight is not None:
        q, k = rms_norm(q, q_weight, 1e-6, **offset), rms_norm(k, k_weight, 1e-6, **offset)
    expected_q, expected_k = rope(q, k, POSITIONS, table)
    assert torch.equal(out, expected_q)
    for token, (block, offset) in enumerate(PLACES):
        assert torch.equal(cache[block, 0, offset], expected_k[token])
        assert torch.equal(cache[block, 1, offset], v[token])
    assert int((cache != 0).any(dim=-1).any(dim=-1).sum()) == 6


def test_norms_may_come_after_a_rotation_of_neighbours() -> None:
    backend, meta, cache = prepared(num_heads=4, num_kv_heads=2, head_dim=16)
    q, k, v, q_weight, k_weight = (torch.randn(*shape) for shape in ((3, 4, 16), (3, 2, 16), (3, 2, 16), (16,), (16,)))
    table = cos_sin_cache({}, 16, 8, 1e4)
    given = {"attention.write": backend.write, "attention.run": backend.run}
    write = make_qk_norm_rope_write_kv({"rms_norm": rms_norm, "rope": rope, **given})
    whole = make_qk_norm_rope_attention({"qk_norm_rope_write_kv": write, **given})
    own = {"norm_after_rope": True, "neighbours": True}
    out = whole(q, k, v, q_weight, k_weight, 1e-6, POSITIONS, table, cache, meta, **own)
    turned_q, turned_k = rope(q, k, POSITIONS, table, neighbours=True)
    expected = rms_norm(turned_q, q_weight, 1e-6), rms_norm(turned_k, k_weight, 1e-6)
    for token, (block, offset) in enumerate(PLACES):
        assert torch.equal(cache[block, 0, offset], expected[1][token])
    assert torch.equal(out, backend.run(expected[0], cache, meta))


@pytest.mark.parametrize("offset", [{}, {"norm_offset": 1.0}], ids=str)
def test_qk_norm_rope_attention_is_the_write_and_then_attention(offset: dict[str, float]) -> None:
    backend, meta, cache = prepared(num_heads=4, num_kv_heads=2, head_dim=16)
    q, k, v, weight = torch.randn(3, 4, 16), torch.randn(3, 2, 16), torch.randn(3, 2, 16), torch.randn(16)
    given = {"attention.write": backend.write, "attention.run": backend.run}
    parts = {"rms_norm": rms_norm, "rope": rope, **given}
    write = make_qk_norm_rope_write_kv(parts)
    arguments = (weight, weight, 1e-6, POSITIONS, cos_sin_cache({}, 16, 8, 1e4))
    filled = cache.clone()
    expected = backend.run(write(q, k, v, *arguments, filled, meta, **offset), filled, meta)
    whole = make_qk_norm_rope_attention({"qk_norm_rope_write_kv": write, **given})
    out = whole(q, k, v, *arguments, cache, meta, **offset)
    assert torch.equal(out, expected)
    assert torch.equal(cache, filled)


def test_latent_attention_is_attention_to_the_keys_and_values_that_it_never_computes() -> None:
    heads, latent_dim, rotary_dim, key_dim, value_dim = 5, 12, 6, 7, 9
    backend, meta, cache = prepared(num_heads=heads, num_kv_heads=1, head_dim=18, latent_dim=latent_dim)
    earlier = torch.randn(2, latent_dim + rotary_dim)
    cache[2, 0, :2, 0] = earlier
    q, latent = torch.randn(3, heads, key_dim + rotary_dim), torch.randn(3, latent_dim + rotary_dim)
    weight, k_up, v_up = torch.randn(12), torch.randn(heads, key_dim, latent_dim), torch.randn(heads, latent_dim, 9)
    table = cos_sin_cache({}, rotary_dim, 8, 1e4)

    given = {"attention.write": backend.write, "attention.run": backend.run}
    parts = {"rms_norm": rms_norm, "rope_interleaved": rope_interleaved, "per_head_matmul": per_head_matmul, **given}
    parts["norm_rope_write_latent"] = make_norm_rope_write_latent(parts)
    out = make_latent_attention(parts)(q, latent, weight, 1e-6, k_up, v_up, POSITIONS, table, cache, meta)

    q_rope, k_rope = rope_interleaved(q[..., key_dim:], latent[:, None, latent_dim:], POSITIONS, table)
    stored = torch.cat((rms_norm(latent[:, :latent_dim], weight, 1e-6), k_rope[:, 0]), dim=1)
    for token, (block, offset) in enumerate(PLACES):
        assert torch.equal(cache[block, 0, offset, 0], stored[token])
    rows = torch.cat((earlier, stored)).double()
    keys = torch.einsum("sr,hkr->hsk", rows[:, :latent_dim], k_up.double())
    keys = torch.cat((keys, rows[:, latent_dim:].expand(heads, -1, -1)), dim=-1)
    values = torch.einsum("sr,hrv->hsv", rows[:, :latent_dim], v_up.double())
    queries = torch.cat((q[..., :key_dim], q_rope), dim=-1).double()
    logits = torch.einsum("thk,hsk->hts", queries, keys) * 0.25
    hidden = torch.arange(5)[None] > POSITIONS[:, None]
    weights = logits.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    expected = torch.einsum("hts,hsv->thv", weights, values)
    assert out.shape == (3, heads, value_dim)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
