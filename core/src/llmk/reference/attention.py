"""Paged attention in plain torch: gathers each request's keys and values by its block table, then attends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api.attention import CacheLayout, Capture
from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk.reference.attend import attend_fused, attend_plain

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
    """int64 ``[2 * requests * keys]``, where keys, and after them values, lie in the cache seen as rows of one
    token."""
    allowed: Tensor | None
    """bool ``[requests, queries, keys]``; ``None``: every key, or ``causal``."""
    causal: bool


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """A step, ready for :meth:`ReferenceAttention.write` and :meth:`ReferenceAttention.run`.

    ``written`` are the tokens to store (``None``: all), ``key_rows`` and ``value_rows`` their places in the cache
    seen as rows of one token.
    """

    num_tokens: int
    written: Tensor | None
    key_rows: Tensor
    value_rows: Tensor
    groups: Sequence[Group]


class ReferenceAttention:
    """Causal attention with grouped heads, sliding window, soft cap and sinks, for prefill, chunked prefill and
    decode in one step.

    The cache is ``[num_blocks, 2, block_size, kv_heads, head_dim]``, keys before values. Slots that no sequence has
    written are never read, whatever they hold. Decoding requests of similar length attend as one batch, padded with
    copies of their own last token that the mask hides; every other request attends alone. The padding, hence the order
    in which torch's kernels add up, depends on the other requests, so rows agree to rounding.

    :meth:`prepare` reads lengths back to the host: one wait per step and cache group. An instance keeps one buffer for
    gathered keys and values, as large as the most that a group has needed; it serves one thread.
    """

    capture: Capture = "none"

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self.query = query
        self.device = device
        self._gathered = torch.empty(0)

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """``[num_blocks, 2, block_size, kv_heads, head_dim]`` in the query's ``cache_dtype``."""
        query = self.query
        shape = (num_blocks, 2, query.block_size, query.num_kv_heads, query.head_dim)
        return CacheLayout("reference", shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> AttentionMeta:
        """Groups the requests and works out where their tokens lie."""
        starts = step.query_start[: step.num_requests + 1].tolist()
        lengths = step.seq_lens[: step.num_requests].tolist()
        slots = step.slot_mapping[: step.num_tokens]
        written = None
        if bool((slots < 0).any()):
            written = torch.nonzero(slots >= 0).squeeze(1)
            slots = slots[written]
        key_rows = self._rows(slots // self.query.block_size, slots)
        groups = list(self._groups(step, starts, lengths))
        return AttentionMeta(step.num_tokens, written, key_rows, key_rows + self.query.block_size, groups)

    def write(self, key: Tensor, value: Tensor, cache: Tensor, meta: AttentionMeta) -> None:
        """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``, cast to the cache's dtype); slots of -1
        and padding are left out."""
        rows = cache.view(-1, *cache.shape[3:])
        for tensor, places in ((key, meta.key_rows), (value, meta.value_rows)):
            kept = tensor[: meta.num_tokens] if meta.written is None else tensor[meta.written]
            rows.index_copy_(0, places, kept.to(cache.dtype))

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, sinks: Tensor | None = None) -> Tensor:
        """Attends ``query`` (``[tokens, heads, head_dim]``) to the cache. Rows beyond the step's true tokens come
        back as zeros."""
        if len(meta.groups) == 1 and meta.num_tokens == query.shape[0]:
            return self._attend(query, cache, meta.groups[0], sinks)
        out = torch.zeros_like(query)
        for group in meta.groups:
            out[group.tokens] = self._attend(query[group.tokens], cache, group, sinks)
        return out

    def _attend(self, query: Tensor, cache: Tensor, group: Group, sinks: Tensor | None) -> Tensor:
        k, v = self._gather(cache, group).to(query.dtype)
        q = query.reshape(group.requests, -1, *query.shape[1:])
        spec = self.query
        if spec.softcap is None and sinks is None:
            out = attend_fused(q, k, v, group.allowed, group.causal, spec.scale)
        else:
            allowed = group.allowed
            if group.causal:
                allowed = torch.ones(1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
            out = attend_plain(q, k, v, allowed, spec.scale, spec.softcap, sinks)
        return out.reshape(query.shape)

    def _gather(self, cache: Tensor, group: Group) -> Tensor:
        """The group's keys and values, ``[2, requests, keys, kv_heads, head_dim]``, in the buffer: a new one each time
        would cost more in page faults than the copying."""
        rows = cache.view(-1, *cache.shape[3:])
        needed = group.gather.shape[0]
        if self._gathered.dtype != rows.dtype or self._gathered.shape[0] < needed:
            with torch.inference_mode(False):
                self._gathered = torch.empty(needed, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        buffer = torch.index_select(rows, 0, group.gather, out=self._gathered[:needed])
        return buffer.view(2, group.requests, -1, *rows.shape[1:])

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
        tokens_at_once = GATHER_ELEMENTS // (2 * self.query.num_kv_heads * self.query.head_dim)
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
            gather=torch.cat((key_rows, key_rows + self.query.block_size)),
            allowed=allowed,
            causal=causal and queries > 1,
        )

    def _rows(self, blocks: Tensor, positions: Tensor) -> Tensor:
        """Rows of keys, with the cache seen as one row per token; those of values lie ``block_size`` further on."""
        block_size = self.query.block_size
        return blocks.to(torch.int64) * (2 * block_size) + positions % block_size


def _worth_padding(span: int, longest: int) -> bool:
    """Whether reading up to ``longest`` keys costs less than another pass through torch's operators."""
    return longest - span <= 128 or span * 4 >= longest * 3
