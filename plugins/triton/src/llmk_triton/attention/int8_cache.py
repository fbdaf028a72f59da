"""The Triton backend of paged attention over an int8 cache with a scale per token and head."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api.attention import CacheLayout
from llmk.api.cache import SCALE_BYTES
from llmk.api.query import AttentionQuery
from llmk_triton.attention.backend import AttentionMeta, TritonAttention
from llmk_triton.attention.write import rows
from llmk_triton.common import pdl
from llmk_triton.common.targets import Tile

LAYOUT = "paged_hnd_int8"
"""Dimensions of the cache: block, K or V, head, bytes: the integers of the block's tokens, then their scales."""

_HEADS = 4
"""Heads per program of the write."""
_LEAST_KEYS = 16
"""Keys of the smallest tile."""


@triton.jit
def _store(x, integers, place, scales, there, columns):
    """Stores vectors (float32 ``[heads, columns]``) as integers with a scale each."""
    largest = tl.max(tl.abs(x), axis=1)
    own = tl.where(largest > 0, tl.div_rn(largest, 127.0), 1.0)
    # Adding and subtracting 1.5 * 2**23 rounds to nearest, ties to even.
    whole = tl.div_rn(x, own[:, None] + tl.zeros_like(x)) + 12582912.0 - 12582912.0
    tl.store(integers + place, whole.to(tl.int8), there[:, None] & columns)
    tl.store(scales.to(tl.pointer_type(tl.float32)), own, there)


@triton.jit
def write_int8_kernel(
    k, v, cache, slot_mapping, stride_k, stride_v, stride_block, stride_kind, stride_head,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PART: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Stores keys and values. The grid is ``[tokens, parts of the heads]``; slots below 0 are not written."""
    pdl.release(PDL)
    pdl.wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * PART + tl.arange(0, PART)
    column = tl.arange(0, BLOCK)[None, :]
    slot = tl.where(head < KV_HEADS, tl.load(slot_mapping + token), -1)
    there, slot = slot >= 0, tl.maximum(slot, 0)
    here = there[:, None] & (column < SIZE)
    key = tl.load((k + token * stride_k + head * SIZE)[:, None] + column, here, other=0.0).to(tl.float32)
    value = tl.load((v + token * stride_v + head * SIZE)[:, None] + column, here, other=0.0).to(tl.float32)
    offset = slot % BLOCK_SIZE
    place = (offset * SIZE)[:, None] + column
    keys = cache + slot // BLOCK_SIZE * stride_block + head.to(tl.int64) * stride_head
    values = keys + stride_kind
    scales = BLOCK_SIZE * SIZE + offset * 4
    _store(key, keys[:, None], place, keys + scales, there, column < SIZE)
    _store(value, values[:, None], place, values + scales, there, column < SIZE)


def _narrower(tile: Tile) -> Tile:
    """A tile with half as many keys, since integers are converted in registers."""
    return replace(tile, keys=max(_LEAST_KEYS, tile.keys // 2))


class Int8Attention(TritonAttention):
    """As :class:`TritonAttention`, over a cache ``[num_blocks, 2, kv_heads, block_size * (head_dim + 4)]`` of bytes."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        super().__init__(query, device)
        self._shape["SCALED"] = True
        self.prefill_tile = _narrower(self.prefill_tile)
        self.few, self.many = (replace(each, tile=_narrower(each.tile)) for each in (self.few, self.many))

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """See the class."""
        query = self.query
        shape = (num_blocks, 2, query.num_kv_heads, query.block_size * (query.head_dim + SCALE_BYTES))
        return CacheLayout(LAYOUT, shape, "int8")

    def strides(self, cache: Tensor) -> tuple[int, int, int, int]:
        block, kind, head, _ = cache.stride()
        return block, kind, head, self.query.head_dim

    def write(
        self,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``); slots of -1 are skipped."""
        key, value, query = rows(key), rows(value), self.query
        if key.shape[0]:
            write_int8_kernel[(key.shape[0], triton.cdiv(query.num_kv_heads, _HEADS))](
                key,
                value,
                cache,
                meta.step.slot_mapping,
                key.stride(0),
                value.stride(0),
                *cache.stride()[:3],
                query.num_kv_heads,
                query.head_dim,
                triton.next_power_of_2(query.head_dim),
                query.block_size,
                _HEADS,
                num_warps=1,
                **pdl.options(),
            )
