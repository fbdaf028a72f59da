"""Paged attention by Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from llmk.api.attention import CacheLayout
from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk_triton.decode import decode_kernel
from llmk_triton.prefill import prefill_kernel
from llmk_triton.tiles import current_target, decode_tile, dot_precision, num_cores, prefill_tile
from llmk_triton.write import write

LAYOUT = "paged_hnd"
"""Blocks, keys before values, heads, tokens, dimensions."""

_LONGEST_SPLIT = 4096
"""Keys that one program of a decoding request takes at most, however many other programs there are."""

_MERGED = 8192
"""Elements of what splits have found that are merged at a time: what registers hold."""


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step, ready for :meth:`TritonAttention.write` and :meth:`TritonAttention.run`.

    Attributes:
        decodes, prefills: whether requests with one query, and with several, may be in it.
        parallel, splits: among how many programs a request's keys are split where they are few enough, and at most.
        partial, stats, arrived: where splits meet, if there are any; see :func:`llmk_triton.decode.decode_kernel`.
    """

    step: CacheStep
    decodes: bool
    prefills: bool
    parallel: int = 1
    splits: int = 1
    partial: Tensor | None = None
    stats: Tensor | None = None
    arrived: Tensor | None = None


class TritonAttention:
    """Causal attention with grouped heads, sliding window, soft cap and sinks.

    The cache is ``[num_blocks, 2, kv_heads, block_size, head_dim]``, so that what one head keeps of a block lies in one
    piece. Slots that no sequence has written are never read. Requests with one query have their keys split between
    programs; all others go tile by tile, and both kinds may be in one step. Nothing waits for the device, and launches
    depend on shapes and on the step's upper bounds alone: a captured step may be replayed for every other whose padded
    shapes are its own and whose bounds don't exceed its own. Padding is requests without queries at the end, of
    which ``query_start`` repeats the number of tokens; rows of padding come back as zeros, or as they were.

    Where the query asks for deterministic results, all requests take the tiles of prefill, whose rows are the same bit
    for bit whatever else is in the batch: a tile that a row doesn't see leaves it as it is.

    Attributes:
        prefill_tile, decode_tile: what a program computes at a time.
        programs_per_core: how many decoding programs a multiprocessor has room for.
    """

    programs_per_core = 4

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self._group = query.num_heads // query.num_kv_heads
        self._cores = num_cores(device)
        itemsize = max(getattr(torch, dtype).itemsize for dtype in (query.dtype, query.cache_dtype))
        block = max(16, triton.next_power_of_2(query.head_dim))
        self.prefill_tile = prefill_tile(current_target(), block, itemsize, self._group)
        self.decode_tile = decode_tile(current_target(), block, itemsize, self._group)
        self._merged_heads = triton.next_power_of_2(self._group)
        self._shape = {
            "SCALE": query.scale,
            "SOFTCAP": query.softcap or 0.0,
            "WINDOW": query.sliding_window or 0,
            "HAS_SINKS": query.sinks,
            "HEADS": query.num_heads,
            "GROUP": self._group,
            "SIZE": query.head_dim,
            "BLOCK": block,
            "BLOCK_SIZE": query.block_size,
            "PRECISION": dot_precision(current_target()),
        }

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, 2, kv_heads, block_size, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        shape = (num_blocks, 2, query.num_kv_heads, query.block_size, query.head_dim)
        return CacheLayout(LAYOUT, shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> AttentionMeta:
        """Decides which kernels run, and among how many programs keys are split."""
        requests, query = step.seq_lens.shape[0], self.query
        prefills = query.deterministic or step.max_query_len > 1
        decodes = not prefills or (not query.deterministic and requests > 1)
        window = query.sliding_window
        # A window may begin within a tile.
        tiles = triton.cdiv(step.max_seq_len, self.decode_tile.keys)
        tiles = min(tiles, triton.cdiv(window, self.decode_tile.keys) + 1) if window else tiles
        parallel = max(1, min(self.programs_per_core * self._cores // (requests * query.num_kv_heads), tiles))
        splits = max(parallel, triton.cdiv(tiles, self._most_tiles))
        if not decodes or splits == 1:
            return AttentionMeta(step, decodes, prefills)
        shape, device = (requests, query.num_kv_heads, splits, self._group), step.seq_lens.device
        partial = torch.empty(*shape, query.head_dim, dtype=torch.float32, device=device)
        stats = torch.empty(*shape, 2, dtype=torch.float32, device=device)
        arrived = torch.zeros(requests * query.num_kv_heads, dtype=torch.int32, device=device)
        return AttentionMeta(step, decodes, prefills, parallel, splits, partial, stats, arrived)

    def write(self, key: Tensor, value: Tensor, cache: Tensor, meta: AttentionMeta) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``, cast to the cache's dtype); slots of -1 are
        left out."""
        write(key, value, cache, meta.step.slot_mapping)

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, sinks: Tensor | None = None) -> Tensor:
        """Attends ``query`` (``[tokens, heads, head_dim]``) to the cache."""
        if query.stride(2) != 1 or query.stride(1) != query.shape[2]:
            query = query.contiguous()
        step = meta.step
        padded = meta.prefills and query.shape[0] != step.num_tokens
        out = (torch.zeros if padded else torch.empty)(query.shape, dtype=query.dtype, device=query.device)
        tensors = (out, query, cache, query if sinks is None else sinks)
        index = (step.query_start, step.seq_lens, step.block_table)
        strides = (query.stride(0), *cache.stride()[:4], step.block_table.stride(0))
        requests, kv_heads = step.seq_lens.shape[0], self.query.num_kv_heads
        if meta.decodes:
            tile = self.decode_tile
            decode_kernel[(kv_heads, meta.splits, requests)](
                *tensors,
                *index,
                query.shape[0],
                *(out if scratch is None else scratch for scratch in (meta.partial, meta.stats, meta.arrived)),
                *strides,
                meta.parallel,
                **self._shape,
                ROWS=tile.rows,
                TILE=tile.keys,
                MOST_TILES=self._most_tiles,
                SPLIT=meta.splits > 1,
                MERGED_HEADS=self._merged_heads,
                MERGED_AT_ONCE=max(2, _MERGED // (self._merged_heads * self._shape["BLOCK"])),
                MIXED=meta.prefills,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
        if meta.prefills:
            tile = self.prefill_tile
            programs = query.shape[0] // (tile.rows // self._group) + requests
            prefill_kernel[(programs, kv_heads)](
                *tensors,
                *index,
                requests,
                *strides,
                **self._shape,
                ROWS=tile.rows,
                TILE=tile.keys,
                SKIP_DECODE=meta.decodes,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
        return out

    @property
    def _most_tiles(self) -> int:
        return _LONGEST_SPLIT // self.decode_tile.keys
