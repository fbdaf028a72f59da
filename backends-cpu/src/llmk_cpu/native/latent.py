"""Attention over latent vectors, of which all heads read one row per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, heads_of

_latent_attention = library().function("latent_attention", "ppipiiiipppiiiifdd")
_write_rows = library().function("write_rows", "piipiipidd")


@dataclass(frozen=True, slots=True)
class LatentMeta:
    """A step's index tensors."""

    step: CacheStep


class NativeLatentAttention:
    """Causal attention over latent vectors, in float32 over a cache of any float dtype of 16 or 32 bits.

    A row's result is bit-identical in any batch and with any number of threads. Slots that no sequence has written are
    never used. Rows of padding are zeros.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self._cache_code = CODES[getattr(torch, query.cache_dtype)]

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, block_size, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        return CacheLayout("cpu_latent", (num_blocks, query.block_size, query.head_dim), query.cache_dtype)

    def prepare(self, step: CacheStep) -> LatentMeta:
        """Nothing is computed."""
        return LatentMeta(step)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: LatentMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` (``[tokens, 1, head_dim]``) at the step's slots; those of -1 are skipped."""
        rows, slots = heads_of(key), meta.step.slot_mapping
        _write_rows(
            cache.data_ptr(), cache.stride(0), self.query.block_size, rows.data_ptr(), rows.stride(0),
            self.query.head_dim, slots.data_ptr(), meta.step.num_tokens, CODES[key.dtype], self._cache_code,
        )  # fmt: skip

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: LatentMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache: ``[tokens, heads, latent_dim]``."""
        spec, step, query = self.query, meta.step, heads_of(query)
        tokens, heads, size = query.shape
        values, table = spec.latent_dim or size, step.block_table
        out = torch.empty((tokens, heads, values), dtype=query.dtype)
        _latent_attention(
            out.data_ptr(), query.data_ptr(), query.stride(0), cache.data_ptr(), cache.stride(0), spec.block_size,
            size, values, step.query_start.data_ptr(), step.seq_lens.data_ptr(), table.data_ptr(), table.stride(0),
            step.num_requests, tokens, heads, spec.scale, CODES[query.dtype],
            self._cache_code,
        )  # fmt: skip
        return out
