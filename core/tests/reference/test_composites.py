"""The fused op over attention is the same as its parts one after the other, and calls the parts that it was given."""

from __future__ import annotations

import pytest
import torch

from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.attention import ReferenceAttention
from llmk.reference.composites import make_qk_norm_plus_one_rope_write_kv, make_qk_norm_rope_write_kv
from llmk.reference.norms import rms_norm, rms_norm_plus_one
from llmk.reference.rope import cos_sin_cache, rope


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("plus_one", [True, False])
def test_qk_norm_rope_write_kv(normed: bool, plus_one: bool) -> None:
    torch.manual_seed(0)
    spec = AttentionQuery(
        platform=PlatformFacts(name="test", arch="any", device_type="cpu"),
        site="attention",
        dtype="float32",
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=4,
        cache_dtype="float32",
        scale=0.25,
    )
    backend = ReferenceAttention(spec, torch.device("cpu"))
    meta = backend.prepare(
        CacheStep(
            query_start=torch.tensor([0, 3], dtype=torch.int32),
            seq_lens=torch.tensor([5], dtype=torch.int32),
            block_table=torch.tensor([[2, 0]], dtype=torch.int32),
            slot_mapping=torch.tensor([10, 11, 0]),
            num_requests=1,
            num_tokens=3,
            max_query_len=3,
            max_seq_len=5,
            block_size=4,
        )
    )
    cache = torch.zeros(backend.cache_layout(3).shape)
    q, k, v = torch.randn(3, 4, 16), torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    q_weight, k_weight = (torch.randn(16), torch.randn(16)) if normed else (None, None)
    positions, table = torch.tensor([2, 3, 4]), cos_sin_cache({}, 16, 8, 1e4)

    make, norm = (
        (make_qk_norm_plus_one_rope_write_kv, rms_norm_plus_one) if plus_one else (make_qk_norm_rope_write_kv, rms_norm)
    )
    op = make({norm.__name__: norm, "rope": rope, "attention.write": backend.write})
    out = op(q, k, v, q_weight, k_weight, 1e-6, positions, table, cache, meta)

    if q_weight is not None and k_weight is not None:
        q, k = norm(q, q_weight, 1e-6), norm(k, k_weight, 1e-6)
    expected_q, expected_k = rope(q, k, positions, table)
    assert torch.equal(out, expected_q)
    for token, (block, offset) in enumerate([(2, 2), (2, 3), (0, 0)]):
        assert torch.equal(cache[block, 0, offset], expected_k[token])
        assert torch.equal(cache[block, 1, offset], v[token])
    assert int((cache != 0).any(dim=-1).any(dim=-1).sum()) == 6
