"""Paged attention over a cache of columns: a block holds, for each key-value head, the keys and then the values of its
tokens, both transposed, so that tokens are side by side and a tile of scores is a plain matrix product.

Scores are computed tile by tile with a running softmax, so that the memory of a call depends on neither the lengths of
the requests nor how many there are. Requests that decode are computed together: those with most tiles first, and a tile
by those alone that reach it. Prompts are computed in chunks of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep

LAYOUT = "avocet_columns"
TILE = 256
"""Least number of tokens whose scores are computed at a time."""
QUERIES = 128
"""Most queries of one request that are computed at a time."""
DECODING = 64
"""Most requests with one query that are computed at a time."""


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks of requests, each with the same number of queries; those with most tiles first."""

    rows: Tensor
    """int64 ``[chunks, queries]``: the rows of the queries."""
    positions: Tensor
    """int64 ``[chunks, queries]``: their positions."""
    first: Tensor
    """int64 ``[chunks]``: the first block that a query of the chunk sees a token of; ``last``: the last."""
    last: Tensor
    table: Tensor
    """int64 ``[chunks, max_blocks]``: the block tables."""
    active: tuple[int, ...]
    """For each tile, how many chunks, from the first on, have it."""


@dataclass(frozen=True, slots=True)
class Meta:
    """A step's metadata. ``written`` are the rows to store (``None``: all), at ``offsets`` of ``blocks``."""

    written: Tensor | None
    blocks: Tensor
    offsets: Tensor
    groups: tuple[Group, ...]


class ColumnAttention:
    """Follows :class:`llmk.api.AttentionBackend`. Its cache: ``[blocks, kv_heads, head_dim + value_dim, block_size]``.
    It may be strided along its blocks, and is indexed, never viewed as flat. Slots that no token was written to are
    never part of a result, whatever they contain."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self._query = query
        self._device = device
        self._value_dim = query.value_dim or query.head_dim
        self._dtype: torch.dtype = getattr(torch, query.cache_dtype)
        self._blocks_at_once = max(1, TILE // query.block_size)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """Columns of keys, then of values, in the query's ``cache_dtype``."""
        query = self._query
        width = query.head_dim + self._value_dim
        return CacheLayout(LAYOUT, (num_blocks, query.num_kv_heads, width, query.block_size), query.cache_dtype)

    def prepare(self, step: CacheStep) -> Meta:
        """Groups the step's requests. Reads their lengths from the device unless the step has them on the host."""
        slots = step.slot_mapping[: step.num_tokens]
        written = None
        if step.host_seq_lens:
            starts, lengths = [0, *accumulate(step.host_query_lens)], list(step.host_seq_lens)
            if starts[-1] < step.num_tokens:
                written = torch.arange(starts[-1], device=slots.device)
        else:
            starts = step.query_start[: step.num_requests + 1].tolist()
            lengths = step.seq_lens[: step.num_requests].tolist()
            if bool((slots < 0).any()):
                written = (slots >= 0).nonzero().squeeze(1)
        if written is not None:
            slots = slots[written]
        size = self._query.block_size
        groups = tuple(self._groups(step.block_table, starts, lengths))
        return Meta(written, slots // size, slots % size, groups)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: Meta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``[tokens, kv_heads, head_dim]`` keys and values of ``value_dim``; rows without a slot are skipped."""
        if value is None:
            raise ValueError("a cache of columns has values, and latent vectors have none")
        key_dim, target = self._query.head_dim, _indexable(cache)
        for tensor, scale, columns in ((key, scales[0], slice(key_dim)), (value, scales[1], slice(key_dim, None))):
            given = tensor if meta.written is None else tensor[meta.written]
            target[meta.blocks, :, columns, meta.offsets] = _indexable(self._stored(given, scale))

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: Meta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        slopes: Tensor | None = None,
    ) -> Tensor:
        """Attention of ``[tokens, heads, head_dim]`` over the cache, in float32; rows without a request are zeros."""
        out = query.new_zeros(*query.shape[:-1], self._value_dim)
        for group in meta.groups:
            out[group.rows] = self._attend(query[group.rows], cache, group, sinks, scales, slopes).to(query.dtype)
        return out

    def _attend(
        self,
        query: Tensor,
        cache: Tensor,
        group: Group,
        sinks: Tensor | None,
        scales: tuple[float, float],
        slopes: Tensor | None,
    ) -> Tensor:
        """``[chunks, queries, heads, head_dim]`` to the same with ``value_dim``, float32."""
        chunks, queries, heads, _ = query.shape
        kv_heads = self._query.num_kv_heads
        # Of each key-value head, the heads that share it are rows of one matrix product, head by head.
        q = query.float().unflatten(2, (kv_heads, heads // kv_heads)).permute(0, 2, 3, 1, 4)
        shape = (chunks, kv_heads, heads // kv_heads, queries)
        top = q.new_full((*shape, 1), float("-inf"))
        total = torch.zeros_like(top)
        if sinks is not None:  # a logit like any other, of a value of zeros
            top = sinks.float().view(1, *shape[1:3], 1, 1).expand_as(top).clone()
            total = torch.ones_like(top)
        mixed = q.new_zeros(*shape, self._value_dim)
        for tile, count in enumerate(group.active):
            positions, keys, values = self._tile(cache, group, tile, count, scales)
            asking = group.positions[:count, :, None]
            seen = (positions <= asking) & (positions >= self._query.first_visible(asking))
            scores = (q[:count].flatten(2, 3) @ keys).view(count, *shape[1:], -1) * self._query.scale
            if (cap := self._query.softcap) is not None:
                scores = cap * torch.tanh(scores / cap)
            if slopes is not None:
                distances = (positions - asking)[:, None, None].float()
                scores = scores + slopes.float().view(1, *shape[1:3], 1, 1) * distances
            scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
            # What no query sees may be anything, and nothing times NaN is NaN.
            values = values.masked_fill(~seen.any(dim=1)[:, None, None], 0.0)
            highest = torch.maximum(top[:count], scores.amax(dim=-1, keepdim=True))
            base = highest.masked_fill(highest == float("-inf"), 0.0)
            shares, kept = torch.exp(scores - base), torch.exp(top[:count] - base)
            added = (shares.flatten(2, 3) @ values.mT).view(count, *shape[1:], -1)
            mixed[:count] = mixed[:count] * kept + added
            total[:count] = total[:count] * kept + shares.sum(dim=-1, keepdim=True)
            top[:count] = highest
        return (mixed / total).permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _tile(
        self, cache: Tensor, group: Group, tile: int, count: int, scales: tuple[float, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The positions of a tile's tokens, ``[count, 1, tokens]``, and their keys and values in float32,
        ``[count, kv_heads, head_dim or value_dim, tokens]``."""
        size, many = self._query.block_size, self._blocks_at_once
        wanted = group.first[:count, None] + torch.arange(tile * many, (tile + 1) * many, device=group.first.device)
        # Entries after a chunk's last block name no blocks of it; its last block stands in, and is not seen.
        blocks = group.table[:count].gather(1, torch.minimum(wanted, group.last[:count, None]))
        positions = wanted[..., None] * size + torch.arange(size, device=wanted.device)
        found = _indexable(cache)[blocks].view(self._dtype).permute(0, 2, 3, 1, 4).flatten(3).float()
        keys, values = found.split_with_sizes((self._query.head_dim, self._value_dim), dim=2)
        if self._dtype.itemsize == 1:
            keys, values = keys * scales[0], values * scales[1]
        return positions.flatten(1)[:, None], keys, values

    def _stored(self, tensor: Tensor, scale: float) -> Tensor:
        """``tensor`` as the cache holds it."""
        if self._dtype.itemsize > 1:
            return tensor.to(self._dtype)
        limit = torch.finfo(self._dtype).max
        return (tensor.float() / scale).clamp(-limit, limit).to(self._dtype)

    def _groups(self, table: Tensor, starts: list[int], lengths: list[int]) -> Iterator[Group]:
        """The groups of a step; ``starts``: the requests' first rows, and the end; ``lengths``: their tokens in the
        cache."""
        decoding: list[tuple[int, int, int, int]] = []
        for request, length in enumerate(lengths):
            start, stop = starts[request], starts[request + 1]
            if stop - start == 1:
                decoding.append((request, start, stop, length))
                continue
            for row in range(start, stop, QUERIES):
                end = min(row + QUERIES, stop)
                yield self._group(table, [(request, row, end, length - (stop - end))])
        decoding.sort(key=lambda chunk: -self._tiles(*chunk[1:]))
        for at in range(0, len(decoding), DECODING):
            yield self._group(table, decoding[at : at + DECODING])

    def _span(self, start: int, stop: int, length: int) -> tuple[int, int]:
        """The first and the last block that the queries of rows ``start`` to ``stop - 1`` see, the last of which is a
        text's token ``length - 1``."""
        visible = max(0, self._query.first_visible(length - (stop - start)))
        return visible // self._query.block_size, (length - 1) // self._query.block_size

    def _tiles(self, start: int, stop: int, length: int) -> int:
        first, last = self._span(start, stop, length)
        return -(-(last - first + 1) // self._blocks_at_once)

    def _group(self, table: Tensor, chunks: list[tuple[int, int, int, int]]) -> Group:
        tiles = [self._tiles(*chunk[1:]) for chunk in chunks]
        spans = [self._span(*chunk[1:]) for chunk in chunks]
        numbers = [
            (request, start, length - (stop - start), *span)
            for (request, start, stop, length), span in zip(chunks, spans, strict=True)
        ]
        requests, rows, positions, first, last = torch.tensor(numbers, device=table.device).unbind(1)
        each = torch.arange(chunks[0][2] - chunks[0][1], device=table.device)
        return Group(
            rows=rows[:, None] + each,
            positions=positions[:, None] + each,
            first=first,
            last=last,
            table=table[requests].long(),
            active=tuple(sum(tile < own for own in tiles) for tile in range(tiles[0])),
        )


def _indexable(tensor: Tensor) -> Tensor:
    """Views fp8 as bytes, because torch can't index fp8 tensors."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
