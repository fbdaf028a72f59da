"""Paged attention in plain torch: gathers each request's keys and values by its block table, then attends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

import torch
from torch import Tensor

from llmk.api.attention import CacheLayout
from llmk.api.cache import SCALED_BITS, CacheStep
from llmk.api.query import AttentionQuery
from llmk.reference.attention.cached_vectors import columns, decoded, encoded
from llmk.reference.attention.contiguous import attend_fused, attend_plain


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with the same number of query tokens, computed in one attention call; their keys are padded to one
    length."""

    tokens: Tensor | slice
    """Rows of the queries, request by request."""
    requests: int
    gather: Tensor
    """int64 ``[planes * requests * keys]``: rows of the keys, then of the values, in the cache viewed as one row per
    token."""
    allowed: Tensor | None
    """bool ``[requests, queries, keys]``; ``None``: all keys, or those that ``causal`` allows."""
    causal: bool
    distances: Tensor | None = None
    """int64 ``[requests, queries, keys]``, positions of keys less those of queries, where heads have slopes."""


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step's attention metadata, for :meth:`ReferenceAttention.write` and :meth:`ReferenceAttention.run`.

    ``single_group``: whether one group contains all tokens. ``written``: the tokens to store (``None``: all).
    ``key_rows``, ``value_rows``: their rows in the cache viewed as one row per token.
    """

    single_group: bool
    written: Tensor | slice | None
    key_rows: Tensor
    value_rows: Tensor
    groups: Sequence[Group]


class ReferenceAttention:
    """Causal attention with grouped heads, sliding window, soft cap, sinks and slopes, over keys and values or over
    latent vectors, for prefill, chunked prefill and decode in one step.

    The cache is ``[num_blocks, planes, block_size, kv_heads, head_dim]``. There are two planes, keys and values; for
    latent vectors there is only one. If the query has a ``value_dim``, there is also one, whose rows are a head's key
    followed by its value: ``[num_blocks, 1, block_size, kv_heads, head_dim + value_dim]``. Where vectors have scales
    (int8, int4), rows are the bytes of :mod:`llmk.reference.attention.cached_vectors`. Slots that no sequence has
    written are never read, so they may contain anything. Decode requests of similar length are computed in one batch,
    padded with copies of their own last token, which the mask hides; every other request is computed alone. The padding
    depends on the other requests, and with it the order in which torch's kernels sum, so a row's result is the same in
    any batch only up to rounding.

    :meth:`prepare` copies the groups to the device; if the step does not contain the lengths on the host, it also
    synchronizes with the device to read them. An instance keeps one buffer for gathered keys and values, as large as
    the largest group so far; it is not thread-safe.
    """

    gather_elements = 1 << 22
    """Most elements of keys and values that decode requests gather at a time: few enough to be still in the CPU cache
    when attention reads them."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self.device = device
        self._planes = 2 if query.latent_dim is None and query.value_dim is None else 1
        sizes = (query.head_dim,) if query.value_dim is None else (query.head_dim, query.value_dim)
        self._columns = [columns(query.cache_dtype, size) for size in sizes]
        self._row_dim = sum(self._columns)
        self._gathered = torch.empty(0, 0)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, planes, block_size, kv_heads, row_dim]`` in the query's ``cache_dtype``, or in bytes."""
        query = self.query
        shape = (num_blocks, self._planes, query.block_size, query.num_kv_heads, self._row_dim)
        return CacheLayout("reference", shape, "uint8" if query.cache_dtype in SCALED_BITS else query.cache_dtype)

    def prepare(self, step: CacheStep) -> AttentionMeta:
        """Groups the requests, and computes the cache rows of their tokens."""
        cache_slots = step.slot_mapping[: step.num_tokens]
        written: Tensor | slice | None = None
        if step.host_seq_lens:
            starts, lengths = [0, *accumulate(step.host_query_lens)], list(step.host_seq_lens)
            if starts[-1] < step.num_tokens:
                written = slice(starts[-1])
        else:
            starts = step.query_start[: step.num_requests + 1].tolist()
            lengths = step.seq_lens[: step.num_requests].tolist()
            if bool((cache_slots < 0).any()):
                written = torch.nonzero(cache_slots >= 0).squeeze(1)
        if written is not None:
            cache_slots = cache_slots[written]
        key_rows = self._rows(cache_slots // self.query.block_size, cache_slots)
        groups = list(self._groups(step, starts, lengths))
        single_group = len(groups) == 1 and starts[-1] == step.num_tokens
        return AttentionMeta(single_group, written, key_rows, key_rows + self.query.block_size, groups)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: AttentionMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``, cast to the cache's dtype); slots of -1 and
        padding are skipped."""
        key_scale, value_scale = scales
        keys = self._stored(key, meta, key_scale)
        if value is None:
            _write_rows(cache, meta.key_rows, keys)
        elif self._planes == 1:
            values = self._stored(value, meta, value_scale)
            joined = torch.cat((_indexable(keys), _indexable(values)), dim=-1).view(cache.dtype)
            _write_rows(cache, meta.key_rows, joined)
        else:
            _write_rows(cache, meta.key_rows, keys)
            _write_rows(cache, meta.value_rows, self._stored(value, meta, value_scale))

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        slopes: Tensor | None = None,
    ) -> Tensor:
        """Attention of ``query`` (``[tokens, heads, head_dim]``) over the cache. Rows of padding are returned as
        zeros."""
        if meta.single_group:
            return self._attend(query, cache, meta.groups[0], sinks, scales, slopes)
        width = self.query.latent_dim or self.query.value_dim or self.query.head_dim
        out = query.new_zeros(*query.shape[:-1], width)
        for group in meta.groups:
            out[group.tokens] = self._attend(query[group.tokens], cache, group, sinks, scales, slopes)
        return out

    def _stored(self, tensor: Tensor, meta: AttentionMeta, scale: float) -> Tensor:
        """The rows of ``tensor`` that are written, as the cache holds them."""
        return encoded(tensor if meta.written is None else tensor[meta.written], self.query.cache_dtype, scale)

    def _attend(
        self,
        query: Tensor,
        cache: Tensor,
        group: Group,
        sinks: Tensor | None,
        scales: tuple[float, float],
        slopes: Tensor | None,
    ) -> Tensor:
        # The whole latent vectors are used as values and the result is truncated, because torch's fast kernels need
        # values as wide as keys.
        k, v = self._gather(cache, group, query.dtype, scales)
        q = query.reshape(group.requests, -1, *query.shape[1:])
        spec = self.query
        if spec.softcap is None and sinks is None and slopes is None:
            out = attend_fused(q, k, v, group.allowed, group.causal, spec.scale)
        else:
            allowed = group.allowed
            if group.causal:
                allowed = torch.ones(1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
            out = attend_plain(q, k, v, allowed, spec.scale, spec.softcap, sinks, slopes, group.distances)
        out = out.reshape(*query.shape[:-1], v.shape[-1])
        return out if spec.latent_dim is None else out[..., : spec.latent_dim]

    def _gather(
        self, cache: Tensor, group: Group, dtype: torch.dtype, scales: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """The group's keys and values, ``[requests, keys, kv_heads, head_dim or value_dim]``; latent vectors are both.
        They are gathered into the instance's buffer, because page faults of a new buffer would cost more than the
        copy."""
        raw, needed = _indexable(cache), group.gather.shape[0]
        if self._gathered.dtype != raw.dtype or self._gathered.shape[0] < needed:
            with torch.inference_mode(False):
                self._gathered = torch.empty(needed, *raw.shape[3:], dtype=raw.dtype, device=raw.device)
        buffer = _read_rows(raw, group.gather, self._gathered[:needed])
        planes = buffer.view(self._planes, group.requests, -1, *raw.shape[3:]).view(cache.dtype)
        parts = planes.unbind() if self.query.value_dim is None else planes[0].split_with_sizes(self._columns, dim=-1)
        spec = self.query
        sizes = (spec.head_dim, spec.value_dim or spec.head_dim)
        given = zip(parts, sizes, scales, strict=False)
        found = [decoded(part, spec.cache_dtype, size, scale, dtype) for part, size, scale in given]
        return found[0], found[-1]

    def _groups(self, step: CacheStep, starts: list[int], lengths: list[int]) -> Iterator[Group]:
        """The groups of a step; ``starts``: the requests' first rows, and the end; ``lengths``: their numbers of
        tokens."""
        for members in self._partition(starts, lengths):
            yield self._group(step, members, starts, lengths)

    def _partition(self, starts: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """Splits the requests into groups: decode requests of similar span together, all others alone."""
        decoding = []
        for request, length in enumerate(lengths):
            queries = starts[request + 1] - starts[request]
            if queries == 1:
                decoding.append((self._span(length, 1), request))
            elif queries:
                yield [request]
        decoding.sort(reverse=True)
        tokens_at_once = self.gather_elements // (self._planes * self.query.num_kv_heads * self._row_dim)
        members: list[int] = []
        longest = 0
        for span, request in decoding:
            if members and ((len(members) + 1) * longest > tokens_at_once or not _worth_padding(span, longest)):
                yield sorted(members)
                members = []
            longest = longest if members else span
            members.append(request)
        if members:
            yield sorted(members)

    def _span(self, length: int, queries: int) -> int:
        """How many of a request's last tokens are visible to any of its last ``queries`` tokens."""
        return length - max(0, self.query.first_visible(length - queries))

    def _group(self, step: CacheStep, members: list[int], starts: list[int], lengths: list[int]) -> Group:
        queries = starts[members[0] + 1] - starts[members[0]]
        spans = [self._span(lengths[request], queries) for request in members]
        keys = max(spans)
        device = step.block_table.device
        packed = torch.tensor([members, [lengths[r] for r in members], spans, [starts[r] for r in members]])
        request, length, span, start = packed.to(device)[:, :, None]
        position = length - span + torch.arange(keys, device=device)
        present = torch.minimum(position, length - 1)
        key_rows = self._rows(step.block_table[request, present // self.query.block_size], present).flatten()
        window = self.query.sliding_window
        causal = len(members) == 1 and queries == keys and (window is None or queries <= window)
        allowed, distances = None, None
        query_position = (length - queries + torch.arange(queries, device=device))[:, :, None]
        if self.query.alibi:
            distances = position[:, None] - query_position
        if not causal and (queries > 1 or min(spans) < keys):
            allowed = position[:, None] <= query_position
            if window is not None:
                allowed &= position[:, None] >= self.query.first_visible(query_position)
        one = len(members) == 1
        return Group(
            tokens=slice(starts[members[0]], starts[members[0]] + queries) if one else start.flatten(),
            requests=len(members),
            gather=torch.cat([key_rows + plane * self.query.block_size for plane in range(self._planes)]),
            allowed=allowed,
            causal=causal and queries > 1,
            distances=distances,
        )

    def _rows(self, blocks: Tensor, positions: Tensor) -> Tensor:
        """Rows of the keys in the cache viewed as one row per token; the row of a value is ``block_size`` higher."""
        block_size = self.query.block_size
        return blocks.to(torch.int64) * (self._planes * block_size) + positions % block_size


def _read_rows(cache: Tensor, cache_rows: Tensor, out: Tensor) -> Tensor:
    """Fills ``out`` (``[rows, kv_heads, head_dim]``) with ``cache_rows``."""
    if cache.is_contiguous():
        return torch.index_select(cache.view(-1, *cache.shape[3:]), 0, cache_rows, out=out)
    matrix, matrix_rows = _strided_rows(cache, cache_rows)
    torch.index_select(matrix, 0, matrix_rows, out=out.view(-1, matrix.shape[1]))
    return out


def _write_rows(cache: Tensor, cache_rows: Tensor, values: Tensor) -> None:
    """Stores ``values`` (``[rows, kv_heads, head_dim]``) in ``cache_rows``."""
    if cache.is_contiguous():
        rows = cache.view(-1, *cache.shape[3:])
        _indexable(rows).index_copy_(0, cache_rows, _indexable(values))
    else:
        matrix, matrix_rows = _strided_rows(cache, cache_rows)
        _indexable(matrix).index_copy_(0, matrix_rows, _indexable(values).reshape(-1, matrix.shape[1]))


def _indexable(x: Tensor) -> Tensor:
    """Views fp8 as bytes, because torch can't index fp8 tensors."""
    return x.view(torch.uint8) if x.itemsize == 1 else x


def _strided_rows(cache: Tensor, cache_rows: Tensor) -> tuple[Tensor, Tensor]:
    """For a cache whose block stride is larger than its block size: a matrix view from which torch gathers as fast as
    from a contiguous cache, and the rows of this matrix that hold the tokens in ``cache_rows``.

    A row of the matrix is the longest part of a token that divides the block stride too. It is a whole token if the
    block stride is a multiple of the token size.
    """
    page, token, distance = cache.shape[1] * cache.shape[2], cache.shape[3] * cache.shape[4], cache.stride(0)
    size = gcd(token, distance)
    count = ((cache.shape[0] - 1) * distance + page * token) // size
    first = cache_rows // page * (distance // size) + cache_rows % page * (token // size)
    each = torch.arange(token // size, device=cache_rows.device)
    return cache.as_strided((count, size), (size, 1)), (first[:, None] + each).flatten()


def _worth_padding(span: int, longest: int) -> bool:
    """Whether padding to ``longest`` keys costs less than another call of torch's operators."""
    return longest - span <= 128 or span * 4 >= longest * 3
