"""Paged attention in plain torch: gathers each request's keys and values by its block table, then attends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

import torch
from torch import Tensor

from llmk.api.attention import CacheLayout
from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk.reference.attention.contiguous import attend_fused, attend_plain

GATHER_ELEMENTS = 1 << 22
"""Elements of keys and values that decoding requests gather at a time: few enough to be still in a processor's cache
when they are attended to."""


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with equally many query tokens that attend together, their keys padded to one length."""

    tokens: Tensor | slice
    """The query rows, request by request."""
    requests: int
    gather: Tensor
    """int64 ``[planes * requests * keys]``, where keys, and after them values, lie in the cache seen as rows of one
    token."""
    allowed: Tensor | None
    """bool ``[requests, queries, keys]``; ``None``: every key, or ``causal``."""
    causal: bool


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step, ready for :meth:`ReferenceAttention.write` and :meth:`ReferenceAttention.run`.

    ``together``: whether all tokens attend as one group. ``written`` are those to store (``None``: all), ``key_rows``
    and ``value_rows`` their places in the cache seen as rows of one token.
    """

    together: bool
    written: Tensor | slice | None
    key_rows: Tensor
    value_rows: Tensor
    groups: Sequence[Group]


class ReferenceAttention:
    """Causal attention with grouped heads, sliding window, soft cap and sinks, over keys and values or over latent
    vectors, for prefill, chunked prefill and decode in one step.

    The cache is ``[num_blocks, planes, block_size, kv_heads, head_dim]``. Of two planes, keys come before values;
    latent vectors are keys alone. Slots that no sequence has written are never read, whatever they hold. Decoding
    requests of similar length attend as one batch, padded with copies of their own last token that the mask hides;
    every other request attends alone. The padding, hence the order in which torch's kernels add up, depends on the
    other requests, so rows agree to rounding.

    :meth:`prepare` uploads how the requests are grouped; where the step doesn't tell lengths on the host, it waits for
    those of the device, too. An instance keeps one buffer for gathered keys and values, as large as the most that a
    group has needed; it serves one thread.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self.device = device
        self._planes = 2 if query.latent_dim is None else 1
        self._gathered = torch.empty(0, 0)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, planes, block_size, kv_heads, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        shape = (num_blocks, self._planes, query.block_size, query.num_kv_heads, query.head_dim)
        return CacheLayout("reference", shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> AttentionMeta:
        """Groups the requests and works out where their tokens lie."""
        slots = step.slot_mapping[: step.num_tokens]
        written: Tensor | slice | None = None
        if step.host_seq_lens:
            starts, lengths = [0, *accumulate(step.host_query_lens)], list(step.host_seq_lens)
            if starts[-1] < step.num_tokens:
                written = slice(starts[-1])
        else:
            starts = step.query_start[: step.num_requests + 1].tolist()
            lengths = step.seq_lens[: step.num_requests].tolist()
            if bool((slots < 0).any()):
                written = torch.nonzero(slots >= 0).squeeze(1)
        if written is not None:
            slots = slots[written]
        key_rows = self._rows(slots // self.query.block_size, slots)
        groups = list(self._groups(step, starts, lengths))
        together = len(groups) == 1 and starts[-1] == step.num_tokens
        return AttentionMeta(together, written, key_rows, key_rows + self.query.block_size, groups)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: AttentionMeta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``, cast to the cache's dtype); slots of -1
        and padding are left out."""
        for tensor, places, scale in zip((key, value), (meta.key_rows, meta.value_rows), scales, strict=True):
            if tensor is not None:
                kept = tensor if meta.written is None else tensor[meta.written]
                if cache.itemsize == 1:
                    limit = torch.finfo(cache.dtype).max
                    kept = (kept.float() / scale).clamp_(-limit, limit)
                _write_rows(cache, places, kept.to(cache.dtype))

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attends ``query`` (``[tokens, heads, head_dim]``) to the cache. Rows of padding come back as zeros."""
        if meta.together:
            return self._attend(query, cache, meta.groups[0], sinks, scales)
        out = torch.zeros_like(query[..., : self.query.latent_dim])
        for group in meta.groups:
            out[group.tokens] = self._attend(query[group.tokens], cache, group, sinks, scales)
        return out

    def _attend(
        self, query: Tensor, cache: Tensor, group: Group, sinks: Tensor | None, scales: tuple[float, float]
    ) -> Tensor:
        planes = self._gather(cache, group, query.dtype, scales)
        # Latent vectors serve as values whole, and the result is cut: torch's quick kernels want values as wide as
        # keys.
        k, v = planes if self._planes == 2 else planes.expand(2, *planes.shape[1:])
        q = query.reshape(group.requests, -1, *query.shape[1:])
        spec = self.query
        if spec.softcap is None and sinks is None:
            out = attend_fused(q, k, v, group.allowed, group.causal, spec.scale)
        else:
            allowed = group.allowed
            if group.causal:
                allowed = torch.ones(1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
            out = attend_plain(q, k, v, allowed, spec.scale, spec.softcap, sinks)
        out = out.reshape(query.shape)
        return out if spec.latent_dim is None else out[..., : spec.latent_dim]

    def _gather(self, cache: Tensor, group: Group, dtype: torch.dtype, scales: tuple[float, float]) -> Tensor:
        """The group's keys and values, ``[planes, requests, keys, kv_heads, head_dim]``, in the buffer where the cache
        is in ``dtype``: a new one each time would cost more in page faults than the copying."""
        raw, needed = _copyable(cache), group.gather.shape[0]
        if self._gathered.dtype != raw.dtype or self._gathered.shape[0] < needed:
            with torch.inference_mode(False):
                self._gathered = torch.empty(needed, *raw.shape[3:], dtype=raw.dtype, device=raw.device)
        buffer = _read_rows(raw, group.gather, self._gathered[:needed])
        planes = buffer.view(self._planes, group.requests, -1, *raw.shape[3:]).view(cache.dtype).to(dtype)
        if cache.itemsize == 1:
            for plane, scale in zip(planes, scales, strict=False):
                plane.mul_(scale)
        return planes

    def _groups(self, step: CacheStep, starts: list[int], lengths: list[int]) -> Iterator[Group]:
        """What attends together; ``starts`` are the requests' first rows and the end, ``lengths`` their tokens."""
        for members in self._partition(starts, lengths):
            yield self._group(step, members, starts, lengths)

    def _partition(self, starts: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """Splits the requests into groups: decoding ones by similar span, all others one by one."""
        decoding = []
        for request, length in enumerate(lengths):
            queries = starts[request + 1] - starts[request]
            if queries == 1:
                decoding.append((self._span(length, 1), request))
            elif queries:
                yield [request]
        decoding.sort(reverse=True)
        tokens_at_once = GATHER_ELEMENTS // (self._planes * self.query.num_kv_heads * self.query.head_dim)
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
        """How many of a request's last tokens its last ``queries`` tokens see between them."""
        window = self.query.sliding_window
        return length if window is None else min(length, window + queries - 1)

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
        allowed = None
        if not causal and (queries > 1 or min(spans) < keys):
            asking = (length - queries + torch.arange(queries, device=device))[:, :, None]
            allowed = position[:, None] <= asking
            if window is not None:
                allowed &= position[:, None] > asking - window
        one = len(members) == 1
        return Group(
            tokens=slice(starts[members[0]], starts[members[0]] + queries) if one else start.flatten(),
            requests=len(members),
            gather=torch.cat([key_rows + plane * self.query.block_size for plane in range(self._planes)]),
            allowed=allowed,
            causal=causal and queries > 1,
        )

    def _rows(self, blocks: Tensor, positions: Tensor) -> Tensor:
        """Rows of keys, with the cache seen as one row per token; those of values lie ``block_size`` further on."""
        block_size = self.query.block_size
        return blocks.to(torch.int64) * (self._planes * block_size) + positions % block_size


def _read_rows(cache: Tensor, places: Tensor, out: Tensor) -> Tensor:
    """Fills ``out`` (``[rows, kv_heads, head_dim]``) with the tokens at ``places``."""
    if cache.is_contiguous():
        return torch.index_select(cache.view(-1, *cache.shape[3:]), 0, places, out=out)
    pieces, places = _in_pieces(cache, places)
    torch.index_select(pieces, 0, places, out=out.view(-1, pieces.shape[1]))
    return out


def _write_rows(cache: Tensor, places: Tensor, values: Tensor) -> None:
    """Stores ``values`` (``[rows, kv_heads, head_dim]``) as the tokens at ``places``."""
    if cache.is_contiguous():
        rows = cache.view(-1, *cache.shape[3:])
        _copyable(rows).index_copy_(0, places, _copyable(values))
    else:
        pieces, places = _in_pieces(cache, places)
        _copyable(pieces).index_copy_(0, places, _copyable(values).reshape(-1, pieces.shape[1]))


def _copyable(x: Tensor) -> Tensor:
    """fp8 as bytes: torch indexes no narrow floats."""
    return x.view(torch.uint8) if x.itemsize == 1 else x


def _in_pieces(cache: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """A cache whose blocks lie further apart than they are long, as a matrix that torch gathers from as quickly as from
    a contiguous one, and where in it the tokens at ``places`` lie.

    A row is the longest piece of a token of which the distance is a multiple, too: all of it, if the pool is laid out
    with care.
    """
    page, token, distance = cache.shape[1] * cache.shape[2], cache.shape[3] * cache.shape[4], cache.stride(0)
    size = gcd(token, distance)
    count = ((cache.shape[0] - 1) * distance + page * token) // size
    first = places // page * (distance // size) + places % page * (token // size)
    each = torch.arange(token // size, device=places.device)
    return cache.as_strided((count, size), (size, 1)), (first[:, None] + each).flatten()


def _worth_padding(span: int, longest: int) -> bool:
    """Whether reading up to ``longest`` keys costs less than another pass through torch's operators."""
    return longest - span <= 128 or span * 4 >= longest * 3
