"""Attention over a cache ``[blocks, kv_heads, block_size, 2 * head_dim]``, keys beside values, request by request."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step writes, and what each of its requests reads: its rows, and the blocks of its sequence."""

    tokens: Tensor
    blocks: Tensor
    places: Tensor
    requests: list[tuple[int, int, int, Tensor]]


class Vines:
    """Follows ``llmk.api.AttentionBackend``."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self._query = query

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """As the module says."""
        query = self._query
        shape = (num_blocks, query.num_kv_heads, query.block_size, 2 * query.head_dim)
        return CacheLayout("orchard_vines", shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> Rows:
        """Reads the lengths."""
        slots = step.slot_mapping[: step.num_tokens]
        tokens = (slots >= 0).nonzero().flatten()
        starts, lengths, requests = step.query_start.tolist(), step.seq_lens.tolist(), []
        for request in range(step.num_requests):
            first, last, length = starts[request], starts[request + 1], lengths[request]
            if last > first:
                count = -(-length // step.block_size)
                requests.append((first, last, length, step.block_table[request, :count].long()))
        size = step.block_size
        return Rows(tokens, slots[tokens] // size, slots[tokens] % size, requests)

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: Rows,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Puts keys and values in their places."""
        assert value is not None
        cache[meta.blocks, :, meta.places] = torch.cat((key, value), dim=-1)[meta.tokens]

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: Rows,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """In float32."""
        out = torch.zeros_like(query)
        for first, last, length, blocks in meta.requests:
            out[first:last] = self._request(query[first:last], cache, length, blocks, sinks).to(out.dtype)
        return out

    def _request(self, query: Tensor, cache: Tensor, length: int, blocks: Tensor, sinks: Tensor | None) -> Tensor:
        spec, count = self._query, len(query)
        # Blocks before all windows may be others' by now.
        oldest = 0 if spec.sliding_window is None else max(0, length - count + 1 - spec.sliding_window)
        skipped = oldest // spec.block_size
        stored = cache[blocks[skipped:]].transpose(0, 1).flatten(1, 2).float()  # [kv_heads, tokens, 2 * head_dim]
        keys, values = stored[:, : length - skipped * spec.block_size].split(spec.head_dim, dim=-1)
        at = torch.arange(skipped * spec.block_size, length, device=query.device)
        asking = torch.arange(length - count, length, device=query.device)[:, None]
        seen = at <= asking
        if spec.sliding_window is not None:
            seen &= at > asking - spec.sliding_window
        values = values.masked_fill(~seen.any(0)[None, :, None], 0.0)
        heads = query.float().transpose(0, 1).unflatten(0, (spec.num_kv_heads, -1))
        scores = heads @ keys.transpose(1, 2)[:, None] * spec.scale
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        scores = scores.masked_fill(~seen, float("-inf"))
        if sinks is not None:
            sink = sinks.view(spec.num_kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
            weights = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return (weights @ values[:, None]).flatten(0, 1).transpose(0, 1)
