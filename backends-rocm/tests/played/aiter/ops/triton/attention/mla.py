"""Of AITER."""

from __future__ import annotations

from aiter.ops.triton.attention.unified_attention import attend


def mla_prefill_fwd(
    q,
    kv_buffer,
    out,
    cu_seqlens_q,
    seqused_k,
    max_seqlen_kv: int,
    block_tables,
    softmax_scale: float,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    causal: bool,
    q_descale,
    kv_descale,
    out_scale=None,
    shuffled_kv_cache: bool = False,
):
    assert causal
    assert kv_lora_rank + qk_rope_head_dim == q.shape[-1]
    values = kv_buffer[..., :kv_lora_rank]
    attend(q, kv_buffer, values, out, cu_seqlens_q, seqused_k, softmax_scale, block_tables)
    return out


def mla_decode_fwd(
    q,
    kv_buffer,
    out,
    cu_seqlens_q,
    seqused_k,
    max_seqlen_kv: int,
    block_tables,
    softmax_scale: float,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    causal: bool,
    q_descale,
    kv_descale,
    q_scales=None,
    out_scale=None,
    shuffled_kv_cache: bool = False,
    skip_reduce: bool = False,
):
    assert q.shape[0] == len(seqused_k), "a token per request"
    return mla_prefill_fwd(
        q, kv_buffer, out, cu_seqlens_q, seqused_k, max_seqlen_kv, block_tables, softmax_scale, kv_lora_rank,
        qk_rope_head_dim, causal, q_descale, kv_descale,
    )  # fmt: skip
