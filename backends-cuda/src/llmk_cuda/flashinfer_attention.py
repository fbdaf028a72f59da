"""Paged attention by FlashInfer (arXiv:2501.01005).

FlashInfer plans every step on the host, from the sequence lengths known there, and compiles its kernels with nvcc at
the first plan, which takes a minute or more unless they are in its cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, cycle
from typing import Any

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep

LAYOUT = "flashinfer_hnd"
"""A separate name, although other backends have the same layout: ops that write for another backend need its
``meta``."""

_WORKSPACE_BYTES = 128 << 20
"""Bytes of the workspace for partial results of split requests, as FlashInfer recommends."""

_IN_FLIGHT = 2
"""Most steps in flight. A wrapper's plan is in its pinned memory, which the device reads when it runs the step, so each
step in flight needs its own wrapper."""


@dataclass(frozen=True, slots=True)
class FlashInferMeta:
    """A planned step. ``wrapper`` runs it, ``tokens`` are those that are not padding, ``blocks`` and ``offsets`` (int64
    ``[tokens]``) the cache slots of their keys."""

    wrapper: Any
    tokens: int
    blocks: Tensor
    offsets: Tensor


class FlashInferAttention:
    """Causal attention with grouped heads and a soft cap, in bfloat16 or float16.

    The cache is ``[num_blocks, 2, kv_heads, block_size, head_dim]``. Steps with one token per request use the decode
    kernel; all others use the prefill kernel for all requests.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        # Used only on the device, in stream order, so all wrappers share it.
        space = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)

        def wrappers(kind: Any, **options: Any) -> Iterator[Any]:
            return cycle([kind(float_workspace_buffer=space, kv_layout="HND", **options) for _ in range(_IN_FLIGHT)])

        self._decode = wrappers(BatchDecodeWithPagedKVCacheWrapper, use_tensor_cores=True)
        self._prefill = wrappers(BatchPrefillWithPagedKVCacheWrapper)
        dtype = getattr(torch, query.dtype)
        self._shape = {
            "num_qo_heads": query.num_heads,
            "num_kv_heads": query.num_kv_heads,
            "page_size": query.block_size,
            "sm_scale": query.scale,
            "logits_soft_cap": query.softcap or 0.0,
            "q_data_type": dtype,
            "kv_data_type": dtype,
        }

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, 2, kv_heads, block_size, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        shape = (num_blocks, 2, query.num_kv_heads, query.block_size, query.head_dim)
        return CacheLayout(LAYOUT, shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> FlashInferMeta:
        """Plans the step on the host, without synchronizing with the device."""
        counts, lengths, block_size = step.host_query_lens, step.host_seq_lens, self.query.block_size
        pages = [-(-length // block_size) for length in lengths]
        indptr = torch.tensor([0, *accumulate(pages)], dtype=torch.int32)
        last = torch.tensor([(length - 1) % block_size + 1 for length in lengths], dtype=torch.int32)
        indices = _used_blocks(step.block_table[: len(pages)], step.seq_lens[: len(pages)], block_size, sum(pages))
        size, tokens = self.query.head_dim, sum(counts)
        if step.max_query_len == 1:
            wrapper = next(self._decode)
            wrapper.plan(indptr=indptr, indices=indices, last_page_len=last, head_dim=size, **self._shape)
        else:
            wrapper = next(self._prefill)
            wrapper.plan(
                qo_indptr=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
                paged_kv_indptr=indptr,
                paged_kv_indices=indices,
                paged_kv_last_page_len=last,
                head_dim_qk=size,
                causal=True,
                **self._shape,
            )
        slots = step.slot_mapping[:tokens]
        return FlashInferMeta(wrapper, tokens, slots // block_size, slots % block_size)

    def write(self, key: Tensor, value: Tensor, cache: Tensor, meta: FlashInferMeta) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``), except padding."""
        cache[meta.blocks, 0, :, meta.offsets] = key[: meta.tokens]
        cache[meta.blocks, 1, :, meta.offsets] = value[: meta.tokens]

    def run(self, query: Tensor, cache: Tensor, meta: FlashInferMeta, sinks: Tensor | None = None) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache; rows of padding are undefined."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        meta.wrapper.run(q=query[: meta.tokens].contiguous(), paged_kv_cache=cache, out=out[: meta.tokens])
        return out


def _used_blocks(table: Tensor, lengths: Tensor, block_size: int, total: int) -> Tensor:
    """The blocks in use of each row of ``table`` (``[requests, max_blocks]``), for ``lengths`` tokens, concatenated:
    int32 ``[total]``."""
    pages = (lengths + block_size - 1) // block_size
    rows = torch.repeat_interleave(pages, output_size=total)
    columns = torch.arange(total, device=table.device) - (torch.cumsum(pages, 0) - pages)[rows]
    return table[rows, columns]
