"""Paged attention of which each query's result is the same bit for bit, whatever else is in the step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.api.query import AttentionQuery
from llmk.reference.attend import SCORES_AT_ONCE
from llmk.reference.attention import Group, ReferenceAttention
from llmk.reference.tiles import agreeing_sizes, in_tiles

BLOCK = 256
"""Keys that one product takes; a multiple of the elements that torch aligns by."""


class InvariantAttention(ReferenceAttention):
    """As :class:`ReferenceAttention`, in float32 and in an order that depends on a query's position alone: in blocks
    of :data:`BLOCK` keys counted from the request's first token, block after block, and by tiles of queries
    (:mod:`llmk.reference.tiles`). Keys that a query doesn't see weigh exactly nothing, so it makes no difference which
    of them the step's other queries need.
    """

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        super().__init__(query, device)
        kv_heads, head_dim = query.num_kv_heads, query.head_dim
        wide = torch.float32
        self._score_sizes = agreeing_sizes(_scores, (kv_heads, BLOCK, head_dim), wide, device, _lay_out_keys)
        self._value_sizes = agreeing_sizes(_values, (kv_heads, head_dim, BLOCK), wide, device, _lay_out_values)

    def _groups(self, step: CacheStep, starts: list[int], lengths: list[int]) -> Iterator[Group]:
        """Every request alone, long prompts in pieces."""
        for request, length in enumerate(lengths):
            start, stop = starts[request], starts[request + 1]
            at_once = max(1, min(BLOCK, SCORES_AT_ONCE // (self.query.num_heads * (length + BLOCK))))
            for first in range(start, stop, at_once):
                last = min(first + at_once, stop)
                yield self._piece(step, request, slice(first, last), length - stop + last)

    def _piece(self, step: CacheStep, request: int, tokens: slice, length: int) -> Group:
        """Query rows ``tokens`` of a request, the last of which is its token ``length - 1``."""
        queries, window = tokens.stop - tokens.start, self.query.sliding_window
        asking = torch.arange(length - queries, length, device=self.device)[:, None]
        seen = 0 if window is None else max(0, length - queries - window + 1)
        position = torch.arange(seen // BLOCK * BLOCK, -(-length // BLOCK) * BLOCK, device=self.device)
        allowed = position <= asking
        if window is not None:
            allowed &= position > asking - window
        # Where no query looks, there need be no numbers.
        present = position.clamp(seen, length - 1)
        rows = self._rows(step.block_table[request, present // self.query.block_size], present)
        return Group(tokens, 1, torch.cat((rows, rows + self.query.block_size)), allowed[None], causal=False)

    def _attend(self, query: Tensor, cache: Tensor, group: Group, sinks: Tensor | None) -> Tensor:
        keys, values = self._gather(cache, group).float().squeeze(1)
        queries, heads, head_dim = query.shape
        spec, kv_heads, allowed = self.query, keys.shape[1], group.allowed
        assert allowed is not None
        rows = (query.float() * spec.scale).reshape(queries, kv_heads, -1, head_dim).transpose(0, 1).flatten(1, 2)
        blocks = [slice(start, start + BLOCK) for start in range(0, keys.shape[0], BLOCK)]
        scores = torch.cat([in_tiles(_scores, rows, keys[block], self._score_sizes) for block in blocks], dim=-1)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        by_query = scores.view(kv_heads, queries, -1, scores.shape[-1])
        by_query.masked_fill_(~allowed[:, :, None], float("-inf"))
        peak = scores.amax(dim=-1, keepdim=True)
        total, mixed = torch.zeros_like(peak), torch.zeros_like(rows)
        if sinks is not None:
            sink = sinks.float().view(kv_heads, 1, -1).expand(-1, queries, -1).reshape(peak.shape)
            peak = torch.maximum(peak, sink)
            total += torch.exp(sink - peak)
        weights = scores.sub_(peak).exp_()
        for block in blocks:
            part = weights[..., block]
            total += part.sum(dim=-1, keepdim=True)
            mixed += in_tiles(_values, part, values[block], self._value_sizes)
        return (mixed / total).view(kv_heads, queries, -1, head_dim).transpose(0, 1).reshape(query.shape).to(query.dtype)


def _scores(rows: Tensor, keys: Tensor) -> Tensor:
    """``[kv_heads, rows, head_dim]`` with keys ``[BLOCK, kv_heads, head_dim]``, as the cache has them."""
    return torch.bmm(rows, keys.permute(1, 2, 0))


def _values(rows: Tensor, values: Tensor) -> Tensor:
    """``[kv_heads, rows, BLOCK]`` with values ``[BLOCK, kv_heads, head_dim]``."""
    return torch.bmm(rows, values.transpose(0, 1))


def _lay_out_keys(weight: Tensor) -> Tensor:
    return weight.transpose(0, 1).contiguous()


def _lay_out_values(weight: Tensor) -> Tensor:
    return weight.permute(2, 0, 1).contiguous()
