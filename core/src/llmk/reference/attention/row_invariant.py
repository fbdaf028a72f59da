"""Batch-invariant paged attention: a query's result is bit-identical in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk.reference.attention.contiguous import SCORES_AT_ONCE
from llmk.reference.attention.paged import Group, ReferenceAttention
from llmk.reference.tiles import aligned, in_tiles, invariant_sizes

BLOCK = 128
"""Keys per matrix product."""


class QueryChunk(NamedTuple):
    """Consecutive query rows of one request, and the keys that they see, rounded to whole blocks."""

    request: int
    row: int
    queries: int
    length: int
    """Length of the request up to the last of these queries, in tokens."""
    first_key: int
    keys: int


class InvariantAttention(ReferenceAttention):
    """As :class:`ReferenceAttention`, in float32 and in an order of summation that depends only on a query's position:
    over blocks of :data:`BLOCK` keys counted from the request's first token, and by tiles of queries
    (:mod:`llmk.reference.tiles`). Masked keys have a weight of exactly zero, so it makes no difference which of them
    other queries need. Requests share elementwise operators, but no matrix product."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        super().__init__(query, device)
        keys = (1, query.num_kv_heads, BLOCK, query.head_dim)
        values = (1, query.num_kv_heads, query.value_dim or query.head_dim, BLOCK)
        self._score_sizes = invariant_sizes(_scores, keys, torch.float32, device, _lay_out_keys)
        self._value_sizes = invariant_sizes(_values, values, torch.float32, device, _lay_out_values)

    def _groups(self, step: CacheStep, starts: list[int], lengths: list[int]) -> Iterator[Group]:
        """Groups query chunks with equal numbers of queries and keys."""
        by_shape: dict[tuple[int, int], list[QueryChunk]] = {}
        for request, length in enumerate(lengths):
            for chunk in self._chunks(request, starts[request], starts[request + 1], length):
                by_shape.setdefault((chunk.queries, chunk.keys), []).append(chunk)
        query = self.query
        for (queries, keys), chunks in by_shape.items():
            gathered = self._planes * keys * query.num_kv_heads * self._row_dim
            scores = queries * query.num_heads * keys
            at_once = max(1, min(self.gather_elements // gathered, SCORES_AT_ONCE // scores))
            for first in range(0, len(chunks), at_once):
                yield self._chunk_group(step, chunks[first : first + at_once])

    def _chunks(self, request: int, start: int, stop: int, length: int) -> Iterator[QueryChunk]:
        at_once = max(1, min(BLOCK, SCORES_AT_ONCE // (self.query.num_heads * (length + BLOCK))))
        for row in range(start, stop, at_once):
            queries = min(at_once, stop - row)
            end = length - (stop - row - queries)
            seen = max(0, self.query.first_visible(end - queries))
            first_key = seen // BLOCK * BLOCK
            yield QueryChunk(request, row, queries, end, first_key, -(-end // BLOCK) * BLOCK - first_key)

    def _chunk_group(self, step: CacheStep, chunks: list[QueryChunk]) -> Group:
        columns = torch.tensor([(p.request, p.row, p.length, p.first_key) for p in chunks]).to(self.device)
        request, row, length, first_key = columns.T[:, :, None]
        query = torch.arange(chunks[0].queries, device=self.device)
        query_position = length - chunks[0].queries + query
        position = first_key + torch.arange(chunks[0].keys, device=self.device)
        allowed = position[:, None] <= query_position[:, :, None]
        # Keys that no query sees are replaced by one that is seen, because their cache slots may contain anything.
        oldest = torch.zeros_like(length)
        if self.query.sliding_window is not None:
            visible = self.query.first_visible(query_position)
            allowed &= position[:, None] >= visible[:, :, None]
            oldest = visible[:, :1]
        present = torch.clamp(position, oldest, length - 1)
        rows = self._rows(step.block_table[request, present // self.query.block_size], present).flatten()
        gather = torch.cat([rows + plane * self.query.block_size for plane in range(self._planes)])
        distances = position[:, None] - query_position[:, :, None] if self.query.alibi else None
        return Group((row + query).flatten(), len(chunks), gather, allowed, causal=False, distances=distances)

    def _attend(
        self,
        query: Tensor,
        cache: Tensor,
        group: Group,
        sinks: Tensor | None,
        scales: tuple[float, float],
        slopes: Tensor | None,
    ) -> Tensor:
        keys, values = self._gather(cache, group, torch.float32, scales)
        spec, allowed = self.query, group.allowed
        assert allowed is not None
        requests, queries, num_keys = allowed.shape
        by_group = (requests, queries, spec.num_kv_heads, -1, spec.head_dim)
        rows = (query.float() * spec.scale).reshape(by_group).transpose(1, 2).flatten(2, 3)
        blocks = [slice(start, start + BLOCK) for start in range(0, num_keys, BLOCK)]
        scores = torch.cat([in_tiles(_scores, rows, keys[:, block], self._score_sizes) for block in blocks], dim=-1)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        by_query = scores.view(requests, spec.num_kv_heads, queries, -1, num_keys)
        if slopes is not None and group.distances is not None:
            own = slopes.float().view(1, spec.num_kv_heads, 1, -1, 1)
            by_query += own * group.distances[:, None, :, None].float()
        by_query.masked_fill_(~allowed[:, None, :, None], float("-inf"))
        peak = scores.amax(dim=-1, keepdim=True)
        total, mixed = torch.zeros_like(peak), rows.new_zeros(*rows.shape[:-1], values.shape[-1])
        if sinks is not None:
            sink = sinks.float().view(spec.num_kv_heads, 1, -1).repeat(requests, 1, queries, 1).view(peak.shape)
            peak = torch.maximum(peak, sink)
            total += torch.exp(sink - peak)
        weights = scores.sub_(peak).exp_()
        for block in blocks:
            part = weights[..., block]
            total += part.sum(dim=-1, keepdim=True)
            mixed += in_tiles(_values, part, values[:, block], self._value_sizes)
        out = (mixed / total).view(requests, spec.num_kv_heads, queries, -1, values.shape[-1]).transpose(1, 2)
        return out.reshape(*query.shape[:-1], -1)[..., : spec.latent_dim].to(query.dtype)


def _scores(rows: Tensor, keys: Tensor) -> Tensor:
    """Multiplies queries ``[requests, kv_heads, rows, head_dim]`` by keys ``[requests, BLOCK, kv_heads, head_dim]``."""
    return torch.stack([torch.bmm(aligned(r), k.permute(1, 2, 0)) for r, k in zip(rows, keys, strict=True)])


def _values(rows: Tensor, values: Tensor) -> Tensor:
    """Multiplies weights ``[requests, kv_heads, rows, BLOCK]`` by values ``[requests, BLOCK, kv_heads, head_dim]``."""
    return torch.stack([torch.bmm(aligned(r), v.transpose(0, 1)) for r, v in zip(rows, values, strict=True)])


def _lay_out_keys(weight: Tensor) -> Tensor:
    return weight.transpose(1, 2).contiguous()


def _lay_out_values(weight: Tensor) -> Tensor:
    return weight.permute(0, 3, 1, 2).contiguous()
