"""Paged attention over keys that are stored transposed: a block has a row for each element of a head's key, with all
tokens of the block side by side, and a row for each token's value. So scores are a GEMM of queries and what the cache
holds, and what a tile of blocks adds is summed up as in FlashAttention (arXiv:2205.14135), by an online softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep

_TILE_KEYS = 512
"""Keys that are read at once, in whole blocks."""
_TILE_QUERIES = 256
"""Tokens of a prompt that are computed at once."""
_BATCHED_KEYS = 1 << 15
"""Keys that requests with one token each read at once, together."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries that are computed together: of one request, or one each of several (``count`` of them, with ``queries``
    each, in the order of ``rows``)."""

    rows: Tensor
    count: int
    queries: int
    positions: Tensor
    """int64 ``[count, queries]``."""
    lengths: Tensor
    """int64 ``[count, 1]``, tokens up to the last one that a query of the request sees."""
    tables: Tensor
    """int32 ``[count, max_blocks]``."""
    first: Tensor
    """int64 ``[count, 1]``, the first block that is read."""
    blocks: int
    """How many blocks are read, of the request with the most."""


@dataclass(frozen=True, slots=True)
class Meta:
    """A step's tokens that are stored, with their blocks and offsets, and the tiles of its queries."""

    written: Tensor
    blocks: Tensor
    offsets: Tensor
    tiles: tuple[Tile, ...]


class TransposedKeyAttention:
    """Follows ``llmk.api.AttentionBackend``, with windows, chunks, soft caps and sinks, in float32.

    The cache is ``[blocks, kv_heads, 2, head_dim * block_size]``: of each head, its keys as ``[head_dim, block_size]``,
    then its values as ``[block_size, head_dim]``. Blocks may be strided. In an fp8 cache, both are divided by the
    layer's scales, which queries and results are multiplied by in place of keys and values.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self._query = query
        self._tile_blocks = max(1, _TILE_KEYS // query.block_size)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """The cache's shape, as described in the class."""
        query = self._query
        shape = (num_blocks, query.num_kv_heads, 2, query.head_dim * query.block_size)
        return CacheLayout("teal_transposed_keys", shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> Meta:
        """Reads the lengths, unless the host knows them, and cuts the step into tiles."""
        slots = step.slot_mapping[: step.num_tokens]
        written = (slots >= 0).nonzero().squeeze(1)
        slots, size = slots[written], self._query.block_size
        if step.host_seq_lens:
            counts, lengths = list(step.host_query_lens), list(step.host_seq_lens)
        else:
            starts = step.query_start[: step.num_requests + 1].tolist()
            counts = [end - start for start, end in pairwise(starts)]
            lengths = step.seq_lens[: step.num_requests].tolist()
        return Meta(written, slots // size, slots % size, tuple(self._tiles(step, counts, lengths)))

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: Meta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``[tokens, kv_heads, head_dim]`` each, rounded to the cache's dtype."""
        assert value is not None
        query = self._query
        keys, values = _bytes(cache).select(2, 0), _bytes(cache).select(2, 1)
        keys = keys.unflatten(-1, (query.head_dim, query.block_size))
        values = values.unflatten(-1, (query.block_size, query.head_dim))
        keys[meta.blocks, :, :, meta.offsets] = _stored(key[meta.written], cache.dtype, scales[0])
        values[meta.blocks, :, meta.offsets] = _stored(value[meta.written], cache.dtype, scales[1])

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: Meta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of ``[tokens, heads, head_dim]`` over the cache; rows of padding are zeros."""
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for tile in meta.tiles:
            out[tile.rows] = self._attend(query[tile.rows], cache, tile, sinks, scales).to(out.dtype)
        return out

    def _tiles(self, step: CacheStep, counts: list[int], lengths: list[int]) -> Iterator[Tile]:
        """Tiles of up to ``_TILE_QUERIES`` tokens of a prompt; requests with one token are computed together, those of
        similar length first."""
        single, start = [], 0
        for request, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            if count == 1:
                single.append((length, request, start))
            else:
                for first in range(0, count, _TILE_QUERIES):
                    queries = min(_TILE_QUERIES, count - first)
                    yield self._tile(step, [(length - count + first + queries, request, start + first)], queries)
            start += count
        single.sort(reverse=True)
        while single:
            at_once = max(1, _BATCHED_KEYS // min(single[0][0], _TILE_KEYS))
            yield self._tile(step, single[:at_once], 1)
            single = single[at_once:]

    def _tile(self, step: CacheStep, members: list[tuple[int, int, int]], queries: int) -> Tile:
        """The tile of the last ``queries`` tokens up to a length, of requests whose rows of these start somewhere:
        ``members`` are lengths, requests and rows."""
        size = self._query.block_size
        seen = [max(0, self._query.first_visible(length - queries)) // size for length, _, _ in members]
        blocks = max(-(-length // size) - first for (length, _, _), first in zip(members, seen, strict=True))
        packed = torch.tensor([[*member, first] for member, first in zip(members, seen, strict=True)])
        lengths, requests, starts, first = packed.to(step.block_table.device).T[:, :, None]
        each = torch.arange(queries, device=lengths.device)
        return Tile(
            rows=(starts + each).flatten(),
            count=len(members),
            queries=queries,
            positions=lengths - queries + each,
            lengths=lengths,
            tables=step.block_table[requests.squeeze(1)],
            first=first,
            blocks=blocks,
        )

    def _attend(
        self, query: Tensor, cache: Tensor, tile: Tile, sinks: Tensor | None, scales: tuple[float, float]
    ) -> Tensor:
        """``[rows, heads, head_dim]`` in float32. The heads that share a key head are rows of one GEMM."""
        spec = self._query
        group = spec.num_heads // spec.num_kv_heads
        rows = query.float().view(tile.count, tile.queries, spec.num_kv_heads, group, spec.head_dim)
        rows = rows.permute(0, 2, 3, 1, 4).flatten(2, 3) * (spec.scale * scales[0])
        if sinks is None:
            most = rows.new_full((*rows.shape[:3], 1), float("-inf"))
            total = torch.zeros_like(most)
        else:
            own = sinks.float().view(1, spec.num_kv_heads, group, 1, 1)
            most = own.expand(tile.count, -1, -1, tile.queries, -1).flatten(2, 3)
            total = torch.ones_like(most)
        out = torch.zeros_like(rows)
        for start in range(0, tile.blocks, self._tile_blocks):
            keys, values, allowed = self._read(cache, tile, start)
            scores = rows @ keys
            if spec.softcap is not None:
                scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
            hidden = ~allowed[:, None, None].expand(-1, spec.num_kv_heads, group, -1, -1).flatten(2, 3)
            scores = scores.masked_fill_(hidden, float("-inf"))
            higher = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
            # Where nothing has been seen yet, all differences shall be minus infinity, not NaN.
            shift = higher.masked_fill(higher == float("-inf"), 0.0)
            weights, kept = scores.sub_(shift).exp_(), (most - shift).exp_()
            total = total * kept + weights.sum(dim=-1, keepdim=True)
            out = out.mul_(kept).add_(weights @ values)
            most = higher
        out = out.mul_(scales[1]).div_(total).unflatten(2, (group, tile.queries))
        return out.permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)

    def _read(self, cache: Tensor, tile: Tile, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Some blocks of each request, from its ``start``-th on: keys ``[count, kv_heads, head_dim, keys]``, values
        ``[count, kv_heads, keys, head_dim]``, and which keys each query sees. Values that no query sees are zeros, as
        their slots may hold anything. Blocks behind the last one are read as the last one, and hidden."""
        spec, size = self._query, self._query.block_size
        each = torch.arange(start, min(start + self._tile_blocks, tile.blocks), device=tile.first.device)
        block = tile.first + each
        ids = tile.tables.gather(1, torch.minimum(block, (tile.lengths - 1) // size))
        found = _bytes(cache)[ids].view(cache.dtype).float()
        keys = found[:, :, :, 0].unflatten(-1, (spec.head_dim, size)).permute(0, 2, 3, 1, 4).flatten(3, 4)
        values = found[:, :, :, 1].unflatten(-1, (size, spec.head_dim)).transpose(1, 2).flatten(2, 3)
        position = (block[:, :, None] * size + torch.arange(size, device=block.device)).flatten(1)[:, None]
        asking = tile.positions[:, :, None]
        allowed = position <= asking
        if spec.sliding_window is not None:
            allowed &= position >= spec.first_visible(asking)
        seen = allowed.any(dim=1)[:, None, :, None]
        return keys, values.masked_fill(~seen, 0.0), allowed


def _stored(vectors: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """``vectors`` as the cache holds them; fp8 as bytes, as which torch can index it."""
    if dtype.itemsize > 1:
        return vectors.to(dtype)
    limit = torch.finfo(dtype).max
    return (vectors.float() / scale).clamp_(-limit, limit).to(dtype).view(torch.uint8)


def _bytes(cache: Tensor) -> Tensor:
    """An fp8 cache as bytes; others as they are."""
    return cache.view(torch.uint8) if cache.itemsize == 1 else cache
