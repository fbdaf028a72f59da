"""Paged attention, one request at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheLayout, CacheStep
from llmk.reference.attention.contiguous import attend_plain


@dataclass(frozen=True, slots=True)
class Meta:
    """A step's attention metadata, for ``write`` and ``run``.

    ``written`` are the tokens to store, ``blocks`` and ``offsets`` their cache slots. ``requests`` has, for each
    request with tokens, its first row, its end, its length in the cache and its blocks (``[max_blocks]``).
    """

    written: Tensor
    blocks: Tensor
    offsets: Tensor
    requests: list[tuple[int, int, int, Tensor]]


class AcmeAttention:
    """Follows ``llmk.api.AttentionBackend``. The cache is ``[blocks, block_size, 2, kv_heads, head_dim]``, keys before
    values; blocks may be strided, so the cache is indexed and never viewed as flat."""

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        self._query = query

    def cache_layout(self, num_blocks: int) -> CacheLayout:
        """The cache's shape, as described in the class."""
        query = self._query
        shape = (num_blocks, query.block_size, 2, query.num_kv_heads, query.head_dim)
        return CacheLayout("acme", shape, query.cache_dtype)

    def prepare(self, step: CacheStep) -> Meta:
        """Reads lengths back to the host, once per step and group of layers."""
        slots = step.slot_mapping[: step.num_tokens]
        written = (slots >= 0).nonzero().squeeze(1)
        starts, lengths = step.query_start.tolist(), step.seq_lens.tolist()
        requests = [
            (starts[request], starts[request + 1], lengths[request], step.block_table[request].long())
            for request in range(step.num_requests)
            if starts[request] < starts[request + 1]
        ]
        return Meta(
            written,
            slots[written] // self._query.block_size,
            slots[written] % self._query.block_size,
            requests,
        )

    def write(
        self,
        key: Tensor,
        value: Tensor | None,
        cache: Tensor,
        meta: Meta,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Stores ``[tokens, kv_heads, head_dim]`` each. ``scales`` are for fp8 caches, which ``supports`` refuses."""
        assert value is not None
        cache[meta.blocks, meta.offsets] = torch.stack((key, value), dim=1)[meta.written]

    def run(
        self,
        query: Tensor,
        cache: Tensor,
        meta: Meta,
        sinks: Tensor | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Tensor:
        """Attention of ``[tokens, heads, head_dim]`` over the cache; rows of padding are zeros."""
        spec, out = self._query, torch.zeros_like(query)
        for start, end, length, table in meta.requests:
            window = spec.sliding_window or length
            # Blocks before the windows of all queries may have been freed.
            first = max(0, length - (end - start) + 1 - window)
            positions = torch.arange(first, length, device=query.device)
            asking = positions[start - end :, None]
            allowed = (positions <= asking) & (positions > asking - window)
            stored = cache[table[positions // spec.block_size], positions % spec.block_size]
            keys, values = stored.unbind(1)
            out[start:end] = attend_plain(
                query[None, start:end], keys[None], values[None], allowed[None], spec.scale, spec.softcap, sinks
            )[0]
        return out
