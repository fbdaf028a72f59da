"""Paged attention of AITER, of keys and values and of latent vectors, through block tables that stay on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep

LAYOUT = "rocm_nhd"
LATENT_LAYOUT = "rocm_latent"


class UnifiedAttention:
    """Causal attention with grouped heads, sliding window, soft cap and sinks, in bfloat16 or float16.

    The cache is ``[num_blocks, 2, block_size, kv_heads, head_dim]``. A step is its own metadata.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self._one = torch.ones(1, dtype=torch.float32, device=device)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, 2, block_size, kv_heads, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        shape = (num_blocks, 2, query.block_size, query.num_kv_heads, query.head_dim)
        return CacheLayout(LAYOUT, shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> CacheStep:
        """The step."""
        return step

    def write(
        self, key: Tensor, value: Tensor, cache: Tensor, meta: CacheStep, scales: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``), except those of slot -1. No cache here is
        fp8, so ``scales`` are always ones."""
        from aiter.ops.cache import reshape_and_cache_flash

        reshape_and_cache_flash(
            key=key,
            value=value,
            key_cache=cache[:, 0],
            value_cache=cache[:, 1],
            slot_mapping=meta.slot_mapping[: meta.num_tokens],
            kv_cache_dtype="auto",
            k_scale=self._one,
            v_scale=self._one,
        )

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: CacheStep,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache; rows of padding are undefined."""
        from aiter.ops.triton.attention.unified_attention import unified_attention

        asked, requests = self.query, meta.num_requests
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        window = (asked.sliding_window - 1, 0) if asked.sliding_window else (-1, -1)
        unified_attention(
            q=query,
            k=cache[:, 0],
            v=cache[:, 1],
            out=out,
            cu_seqlens_q=meta.query_start[: requests + 1],
            max_seqlen_q=meta.max_query_len,
            seqused_k=meta.seq_lens[:requests],
            max_seqlen_k=meta.max_seq_len,
            softmax_scale=asked.scale,
            causal=True,
            window_size=window,
            block_table=meta.block_table[:requests],
            softcap=asked.softcap or 0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            sinks=sinks,
        )
        return out


class LatentAttention:
    """Causal attention over latent vectors (MLA), in bfloat16. The cache is ``[num_blocks, block_size, 1, head_dim]``,
    a latent vector and the shared key in each row. A step is its own metadata."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        assert query.latent_dim is not None
        self.query = query
        self._latent = query.latent_dim
        self._one = torch.ones(1, dtype=torch.float32, device=device)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, block_size, 1, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        return CacheLayout(LATENT_LAYOUT, (num_blocks, query.block_size, 1, query.head_dim), query.cache_dtype)

    def prepare(self, step: CacheStep) -> CacheStep:
        """The step."""
        return step

    def write(
        self, key: Tensor, value: None, cache: Tensor, meta: CacheStep, scales: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """Stores rows ``key`` (``[tokens, 1, head_dim]``), except those of slot -1."""
        from aiter.ops.cache import concat_and_cache_mla

        rows = key[:, 0]
        concat_and_cache_mla(
            kv_c=rows[:, : self._latent],
            k_pe=rows[:, self._latent :],
            kv_cache=cache[:, :, 0],
            slot_mapping=meta.slot_mapping[: meta.num_tokens],
            kv_cache_dtype="auto",
            scale=self._one,
        )

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: CacheStep,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache: ``[tokens, heads, latent_dim]``, whose
        rows of padding are undefined. With a token per request, each request's keys are divided among programs."""
        from aiter.ops.triton.attention.mla import mla_decode_fwd, mla_prefill_fwd

        requests, decodes = meta.num_requests, meta.max_query_len == 1
        out = query.new_empty(*query.shape[:2], self._latent)
        # The one kernel takes its number of tokens per request from how many there are.
        tokens = requests if decodes else meta.num_tokens
        attend = mla_decode_fwd if decodes else mla_prefill_fwd
        attend(
            q=query[:tokens],
            kv_buffer=cache,
            out=out[:tokens],
            cu_seqlens_q=meta.query_start[: requests + 1],
            seqused_k=meta.seq_lens[:requests],
            max_seqlen_kv=meta.max_seq_len,
            block_tables=meta.block_table[:requests],
            softmax_scale=self.query.scale,
            kv_lora_rank=self._latent,
            qk_rope_head_dim=self.query.head_dim - self._latent,
            causal=True,
            q_descale=None,
            kv_descale=None,
        )
        return out


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: None,
    k_weight: None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    meta: CacheStep,
) -> Tensor:
    """The op ``qk_norm_rope_write_kv`` of heads that are not normed and are rotated whole, over the cache of
    :class:`UnifiedAttention`: rotates ``q`` and ``k``, and stores keys and values, in one launch. Returns the new
    ``q``."""
    from aiter.ops.triton.fusions.fused_kv_cache import fused_qk_rope_reshape_and_cache

    half = cos_sin.shape[1] // 2
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    fused_qk_rope_reshape_and_cache(
        q=q,
        k=k,
        v=v,
        key_cache=cache[:, 0],
        value_cache=cache[:, 1],
        slot_mapping=meta.slot_mapping[: meta.num_tokens],
        pos=positions,
        cos=cos_sin[:, :half],
        sin=cos_sin[:, half:],
        k_scale=None,
        v_scale=None,
        is_neox=True,
        flash_layout=True,
        apply_scale=False,
        q_out=out,
        output_zeros=False,
    )
    return out
