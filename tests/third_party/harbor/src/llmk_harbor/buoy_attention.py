"""Paged attention over blocks of columns, in plain torch.

The cache is ``[num_blocks, kv_heads, head_dim + value_dim, block_size]``: a token is a column of its block, its key
above its value. Keys are so already transposed for the product with queries, and a block of a head is one piece of
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep

QUERY_TILE = 128
"""Most queries of a request that are computed at a time."""
KEY_TILE = 1024
"""Most keys that are read at a time."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request with tokens in the step: the row of its first one, how many they are, the position of the first, and
    the blocks (int64) from the ``first_block``-th on."""

    row: int
    queries: int
    position: int
    blocks: Tensor
    first_block: int


@dataclass(frozen=True, slots=True)
class StepMeta:
    """A step as :class:`ColumnAttention` reads it. ``kept`` are the tokens that have a slot (``None``: all), ``blocks``
    and ``offsets`` where these are stored."""

    kept: Tensor | None
    blocks: Tensor
    offsets: Tensor
    requests: tuple[Request, ...]


class ColumnAttention:
    """Causal attention with grouped heads, sliding window or chunks, soft cap, sinks and slopes, in float32.

    Each request is computed by tiles of queries and of keys, with a running maximum and sum, so that memory does not
    grow with the length. Slots that no token of the request was written to are never part of a sum. :meth:`prepare`
    reads lengths back from the device where the step does not have them on the host.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self.device = device
        self._value_dim = query.value_dim or query.head_dim
        self._dtype: torch.dtype = getattr(torch, query.cache_dtype)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, kv_heads, head_dim + value_dim, block_size]``."""
        query = self.query
        shape = (num_blocks, query.num_kv_heads, query.head_dim + self._value_dim, query.block_size)
        return CacheLayout("harbor_columns", shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> StepMeta:
        """Where tokens are stored, and the blocks of each request."""
        slots = step.slot_mapping[: step.num_tokens]
        kept: Tensor | None = torch.nonzero(slots >= 0).squeeze(1)
        if len(kept) == len(slots):
            kept = None
        else:
            slots = slots[kept]
        size = self.query.block_size
        return StepMeta(kept, slots // size, slots % size, tuple(self._requests(step)))

    def _requests(self, step: CacheStep) -> Iterator[Request]:
        if step.host_seq_lens:
            starts, lengths = [0, *accumulate(step.host_query_lens)], list(step.host_seq_lens)
        else:
            starts = step.query_start[: step.num_requests + 1].tolist()
            lengths = step.seq_lens[: step.num_requests].tolist()
        for index, length in enumerate(lengths):
            queries = starts[index + 1] - starts[index]
            if not queries:
                continue  # padding
            position = length - queries
            first = max(0, self.query.first_visible(position)) // self.query.block_size
            last = (length - 1) // self.query.block_size
            blocks = step.block_table[index, first : last + 1].to(torch.int64)
            yield Request(starts[index], queries, position, blocks, first)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: StepMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores keys (``[tokens, kv_heads, head_dim]``) and values (``[tokens, kv_heads, value_dim]``)."""
        assert value is not None  # latent vectors are refused
        columns = torch.cat((self._stored(key, scales[0]), self._stored(value, scales[1])), dim=-1)
        if meta.kept is not None:
            columns = columns[meta.kept]
        _bytes(cache)[meta.blocks, :, :, meta.offsets] = columns

    def _stored(self, vectors: Tensor, scale: float) -> Tensor:
        """Vectors as the cache holds them; fp8 as its bytes, because torch can't index fp8."""
        if self._dtype.itemsize > 1:
            return vectors.to(self._dtype)
        limit = torch.finfo(self._dtype).max
        return (vectors.float() / scale).clamp(-limit, limit).to(self._dtype).view(torch.uint8)

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: StepMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        slopes: Tensor | None = None,
    ) -> Tensor:
        """``[tokens, heads, value_dim]`` in ``query``'s dtype, of ``query`` ``[tokens, heads, head_dim]``; rows of
        padding are zeros."""
        out = query.new_zeros(*query.shape[:-1], self._value_dim)
        for request in meta.requests:
            for done in range(0, request.queries, QUERY_TILE):
                count = min(QUERY_TILE, request.queries - done)
                rows = slice(request.row + done, request.row + done + count)
                out[rows] = self._attend(query[rows], request.position + done, request, cache, sinks, scales, slopes)
        return out

    def _attend(
        self,
        query: Tensor,
        position: int,
        request: Request,
        cache: Tensor,
        sinks: Tensor | None,
        scales: tuple[float, float],
        slopes: Tensor | None,
    ) -> Tensor:
        """Attention of consecutive queries of a request, from ``position`` on."""
        spec, count = self.query, query.shape[0]
        heads = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads)
        rows = query.float().reshape(count, *heads, spec.head_dim).permute(1, 2, 0, 3).flatten(1, 2)
        rows = rows * (spec.scale * scales[0])
        positions = torch.arange(position, position + count, device=query.device)[:, None]
        if sinks is None:
            most = torch.full((*heads, count), float("-inf"), device=query.device)
            total = torch.zeros_like(most)
        else:  # the first logit of each row, whose value is zero
            most = sinks.float().view(*heads, 1).expand(-1, -1, count)
            total = torch.ones_like(most)
        summed = torch.zeros(*heads, count, self._value_dim, device=query.device)
        begin, end = max(0, spec.first_visible(position)), position + count
        for start in range(begin, end, KEY_TILE):
            stop = min(start + KEY_TILE, end)
            keys, values = self._read(cache, request, start, stop)
            logits = (rows @ keys).unflatten(1, (heads[1], count))
            if spec.softcap is not None:
                logits = spec.softcap * torch.tanh(logits / spec.softcap)
            places = torch.arange(start, stop, device=query.device)
            if slopes is not None:
                logits = logits + slopes.float().view(*heads, 1, 1) * (places - positions)
            if count > 1:
                hidden = (places > positions) | (places < spec.first_visible(positions))
                logits = logits.masked_fill(hidden, float("-inf"))
            peak = torch.maximum(most, logits.amax(dim=-1))
            reference = peak.masked_fill(peak == float("-inf"), 0.0)  # a row that has seen nothing yet
            weights, shrink = torch.exp(logits - reference[..., None]), torch.exp(most - reference)
            total = total * shrink + weights.sum(dim=-1)
            added = weights.flatten(1, 2) @ values.transpose(1, 2)
            summed = summed * shrink[..., None] + added.view_as(summed)
            most = peak
        out = summed / total[..., None] * scales[1]
        return out.permute(2, 0, 1, 3).reshape(count, spec.num_heads, self._value_dim).to(query.dtype)

    def _read(self, cache: Tensor, request: Request, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The keys and values of the positions from ``start`` to ``stop - 1``, float32 ``[kv_heads, size, keys]``."""
        size = self.query.block_size
        first, last = start // size, (stop - 1) // size
        blocks = request.blocks[first - request.first_block : last + 1 - request.first_block]
        columns = _bytes(cache).index_select(0, blocks).view(self._dtype).permute(1, 2, 0, 3).flatten(2)
        columns = columns[..., start - first * size : stop - first * size].float()
        keys, values = columns.split((self.query.head_dim, self._value_dim), dim=1)
        return keys, values


def _bytes(cache: Tensor) -> Tensor:
    """A view of an fp8 cache that torch can index; other caches as they are."""
    return cache.view(torch.uint8) if cache.itemsize == 1 else cache
