"""Paged attention with keys and values in two planes, ``[2, blocks, kv_heads, block_size, head_dim]``.

Tiles of keys are folded into running sums (online softmax, arXiv:1805.02867). Requests that ask for one token are
computed side by side, each from the first token that it sees; prompts one after the other, in tiles of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep

_KEYS = 512
_QUERIES = 64
_TOGETHER = 32
"""Keys and queries of a tile, and the most requests that are computed side by side."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries that are computed together: ``rows`` and ``asked`` (their positions) are int64 ``[requests, queries]``,
    ``first`` (the first token that any of them sees) and ``ends`` (that after the last) int64 ``[requests, 1]``,
    ``tables`` ``[requests, max_blocks]``; ``span`` is the greatest ``ends - first``."""

    rows: Tensor
    asked: Tensor
    first: Tensor
    ends: Tensor
    tables: Tensor
    span: int


@dataclass(frozen=True, slots=True)
class Meta:
    """A step: the tokens to store, their blocks and offsets, and the queries."""

    written: Tensor
    blocks: Tensor
    offsets: Tensor
    tiles: list[Tile]


class PlanesAttention:
    """Follows :class:`llmk.api.AttentionBackend`. Blocks may be strided: the cache is indexed, never viewed as flat."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self._query = query
        self._device = device
        self._is_fp8 = query.cache_dtype.startswith("float8")

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """The cache's shape, as the module describes it."""
        query = self._query
        shape = (2, num_blocks, query.num_kv_heads, query.block_size, query.head_dim)
        return CacheLayout("egret_planes", shape, query.cache_dtype, block_dim=1)

    def prepare(self, step: CacheStep) -> Meta:
        """Reads lengths back to the host, once per step and group of layers."""
        slots = step.slot_mapping[: step.num_tokens]
        written = (slots >= 0).nonzero().squeeze(1)
        kept, block_size = slots[written], self._query.block_size
        return Meta(written, kept // block_size, kept % block_size, list(self._tiles(step)))

    def write(
        self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Meta, scales: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """Stores ``[tokens, kv_heads, head_dim]`` each, in fp8 divided by ``scales``."""
        assert value is not None
        for plane, vectors, scale in zip(cache, (key, value), scales, strict=True):
            stored = vectors[meta.written]
            if self._is_fp8:
                limit = torch.finfo(cache.dtype).max
                stored = (stored.float() / scale).clamp_(-limit, limit)
            _indexable(plane)[meta.blocks, :, meta.offsets] = _indexable(stored.to(cache.dtype))

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: Meta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        slopes: Tensor | None = None,
    ) -> Tensor:
        """Attention of ``[tokens, heads, head_dim]`` over the cache, in float32; rows of padding are zeros."""
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for tile in meta.tiles:
            out[tile.rows] = self._attend(query[tile.rows], cache, tile, sinks, scales, slopes).to(out.dtype)
        return out

    def _tiles(self, step: CacheStep) -> Iterator[Tile]:
        """The step's tiles: first those of requests with one token, of similar length."""
        starts, lengths = step.query_start.tolist(), step.seq_lens.tolist()
        counts = [starts[request + 1] - starts[request] for request in range(step.num_requests)]
        single = sorted((lengths[request], request) for request, count in enumerate(counts) if count == 1)
        for start in range(0, len(single), _TOGETHER):
            members = [request for _, request in single[start : start + _TOGETHER]]
            yield self._tile(step, members, [[starts[r]] for r in members], [[lengths[r] - 1] for r in members])
        for request, count in enumerate(counts):
            for begin in range(0, count if count > 1 else 0, _QUERIES):
                own = range(begin, min(begin + _QUERIES, count))
                before = lengths[request] - count
                rows, asked = [starts[request] + token for token in own], [before + token for token in own]
                yield self._tile(step, [request], [rows], [asked])

    def _tile(self, step: CacheStep, members: list[int], rows: list[list[int]], asked: list[list[int]]) -> Tile:
        first = [[max(0, self._query.first_visible(positions[0]))] for positions in asked]
        ends = [[positions[-1] + 1] for positions in asked]
        return Tile(
            *(torch.tensor(numbers, device=self._device) for numbers in (rows, asked, first, ends)),
            tables=step.block_table[torch.tensor(members, device=self._device)].long(),
            span=max(end - begin for (end,), (begin,) in zip(ends, first, strict=True)),
        )

    def _attend(
        self,
        query: Tensor,
        cache: Tensor,
        tile: Tile,
        sinks: Tensor | None,
        scales: tuple[float, float],
        slopes: Tensor | None,
    ) -> Tensor:
        """``[requests, queries, heads, head_dim]`` to the same, in float32."""
        requests, queries, heads, size = query.shape
        kv_heads = self._query.num_kv_heads
        grouped = query.float().view(requests, queries, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
        shape = (*grouped.shape[:-1], 1)
        greatest = torch.full(shape, float("-inf"), device=query.device)
        total, out = torch.zeros_like(greatest), torch.zeros(grouped.shape, device=query.device)
        for start in range(0, tile.span, _KEYS):
            places = tile.first + torch.arange(start, min(start + _KEYS, tile.span), device=query.device)
            keys, values = self._read(cache, tile, places, scales)
            scores = self._scores(grouped, keys, tile, places, slopes)
            raised = torch.maximum(greatest, scores.amax(dim=-1, keepdim=True))
            # Rows that have seen no key yet: any finite number will do.
            level = raised.masked_fill(raised == float("-inf"), 0.0)
            weights, fading = torch.exp(scores - level), torch.exp(greatest - level)
            total = total * fading + weights.sum(dim=-1, keepdim=True)
            out = out * fading + (weights.flatten(2, 3) @ values).view(out.shape)
            greatest = raised
        if sinks is not None:
            sink = sinks.float().view(1, kv_heads, -1, 1, 1)
            raised = torch.maximum(greatest, sink)
            fading = torch.exp(greatest - raised)
            total, out = total * fading + torch.exp(sink - raised), out * fading
        return (out / total).permute(0, 3, 1, 2, 4).reshape(query.shape)

    def _read(self, cache: Tensor, tile: Tile, places: Tensor, scales: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Keys and values at ``places`` (``[requests, keys]``), float32 ``[requests, kv_heads, keys, head_dim]``. Past
        the end of a request, its last token stands."""
        present = torch.minimum(places, tile.ends - 1)
        blocks = tile.tables.gather(1, present // self._query.block_size)
        offsets = present % self._query.block_size
        found = []
        for plane, scale in zip(cache, scales, strict=True):
            vectors = _indexable(plane)[blocks, :, offsets].view(cache.dtype).float().transpose(1, 2)
            found.append(vectors * scale if self._is_fp8 else vectors)
        return found[0], found[1]

    def _scores(self, grouped: Tensor, keys: Tensor, tile: Tile, places: Tensor, slopes: Tensor | None) -> Tensor:
        """The logits ``[requests, kv_heads, group, queries, keys]``, minus infinity where a key is not seen."""
        spec = self._query
        scores = (grouped.flatten(2, 3) @ keys.transpose(2, 3) * spec.scale).view(*grouped.shape[:-1], -1)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        asked, shown = tile.asked[:, :, None], places[:, None]
        if slopes is not None:
            scores = scores + slopes.float().view(1, spec.num_kv_heads, -1, 1, 1) * (shown - asked)[:, None, None]
        seen = (shown <= asked) & (shown >= spec.first_visible(asked))
        return scores.masked_fill(~seen[:, None, None], float("-inf"))


def _indexable(x: Tensor) -> Tensor:
    """fp8 as bytes, which torch can index."""
    return x.view(torch.uint8) if x.itemsize == 1 else x
