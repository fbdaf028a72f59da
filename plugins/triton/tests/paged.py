"""Random steps of paged attention: blocks in random order, a cache that contains NaN wherever nothing was written, and
the answer by ``llmk.reference``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.attention.contiguous import attend_plain
from llmk_triton.attention.backend import AttentionMeta, TritonAttention

FACTS = PlatformFacts(name="test", arch="any", device_type="cpu", features=frozenset({"triton"}))
DEVICE = torch.device("cpu")
BOUND = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}
DECODE = [(n, 1) for n in (1, 3, 4, 5, 8, 33)]
CHUNKED = [(9, 4), (8, 4), (31, 7), (6, 5)]
MIXED = [(17, 1), (21, 21), (4, 1), (19, 6), (40, 1)]
STEPS = {"decode": DECODE, "chunked": CHUNKED, "mixed": MIXED}


def attention_query(dtype: torch.dtype = torch.float32, **changes: Any) -> AttentionQuery:
    """A query with six heads over two key heads, unless ``changes`` say otherwise."""
    name = str(dtype).removeprefix("torch.")
    facts: dict[str, Any] = {
        "platform": FACTS,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 24,
        "block_size": 4,
        "cache_dtype": name,
        "dtype": name,
        "scale": 0.21,
    }
    return AttentionQuery(site="attention", **facts | changes)


class Step:
    """Requests of ``(length, queries)``: ``length`` tokens, the last ``queries`` of which are this step's.

    Args:
        padding: how many requests and tokens without meaning follow the true ones.
        longest: the step's upper bound on lengths; the true one unless given.
        shared: number of leading blocks that all requests share with the first.
        scales: of an fp8 cache; ``kv`` is then what it holds, to be multiplied by them.
    """

    def __init__(
        self,
        query: AttentionQuery,
        requests: Sequence[tuple[int, int]],
        *,
        padding: int = 0,
        longest: int = 0,
        shared: int = 0,
        scales: tuple[float, float] = (1.0, 1.0),
        seed: int = 0,
    ) -> None:
        self.query, self.requests, self.scales = query, requests, scales
        random = torch.Generator().manual_seed(seed)
        dtype, size = getattr(torch, query.dtype), query.block_size
        self.num_tokens = sum(queries for _, queries in requests)
        rows = self.num_tokens + padding
        self.q = torch.randn(rows, query.num_heads, query.head_dim, generator=random).to(dtype)
        self.widths = query.head_dim, query.value_dim or query.head_dim
        shape = (query.num_kv_heads, max(self.widths))
        self.kv = [torch.randn(2, length, *shape, generator=random).to(dtype) for length, _ in requests]
        self.sinks = torch.randn(query.num_heads, generator=random) if query.sinks else None
        blocks = [-(-length // size) for length, _ in requests]
        self.num_blocks = sum(blocks) + 3
        order = torch.randperm(self.num_blocks, generator=random).to(torch.int32)
        self.table = torch.full((len(requests) + padding, max(blocks)), 2**30, dtype=torch.int32)
        for row, (start, count) in enumerate(zip(accumulate(blocks, initial=0), blocks, strict=False)):
            self.table[row, :count] = order[start : start + count]
            self.table[row, :shared] = self.table[0, :shared]
            self.kv[row][:, : shared * size] = self.kv[0][:, : shared * size]
        starts = list(accumulate((queries for _, queries in requests), initial=0))
        slots = [self.slots(row, length - queries, length) for row, (length, queries) in enumerate(requests)]
        self.index = CacheStep(
            query_start=torch.tensor(starts + [starts[-1]] * padding, dtype=torch.int32),
            seq_lens=torch.tensor([length for length, _ in requests] + [0] * padding, dtype=torch.int32),
            block_table=self.table,
            slot_mapping=torch.cat([*slots, torch.full((padding,), -1)]),
            num_requests=len(requests),
            num_tokens=self.num_tokens,
            max_query_len=max(queries for _, queries in requests),
            max_seq_len=longest or max(length for length, _ in requests),
            block_size=size,
        )

    def slots(self, row: int, start: int, stop: int) -> Tensor:
        """Slots of a request's tokens, int64."""
        positions, size = torch.arange(start, stop), self.query.block_size
        return self.table[row, positions // size].long() * size + positions % size

    def new_kv(self) -> list[Tensor]:
        """Keys and values of this step's tokens, ``[tokens, kv_heads, head_dim or value_dim]``, with NaN for
        padding."""
        new = [kv[:, length - queries :] for kv, (length, queries) in zip(self.kv, self.requests, strict=True)]
        padding = self.q.shape[0] - self.num_tokens
        padded = [*new, torch.full((2, padding, *new[0].shape[2:]), float("nan"), dtype=new[0].dtype)]
        return [part[..., :width] for part, width in zip(torch.cat(padded, dim=1), self.widths, strict=True)]

    def cache(self, backend: TritonAttention, *, stride: int = 1) -> Tensor:
        """The cache before this step's tokens are written. Blocks lie ``stride`` times their size apart; what a
        sliding window has left behind is NaN again."""
        layout = backend.cache_layout(self.num_blocks)
        shape = (layout.shape[0], stride, *layout.shape[1:])
        cache = torch.full(shape, float("nan"), dtype=getattr(torch, layout.dtype))[:, 0]
        for row, ((length, queries), kv) in enumerate(zip(self.requests, self.kv, strict=True)):
            first = length - queries
            start = max(0, self.query.first_visible(first))
            slots = self.slots(row, start, first)
            size = self.query.block_size
            key, value = (part[start:first, :, :width] for part, width in zip(kv, self.widths, strict=True))
            if cache.dim() == 5:
                cache[slots // size, :, :, slots % size] = torch.stack((key, value), dim=1).to(cache.dtype)
            else:
                cache[slots // size, :, slots % size] = torch.cat((key, value), dim=-1).to(cache.dtype)
        return cache

    def run(self, backend: TritonAttention, *, stride: int = 1) -> Tensor:
        """Writes and attends."""
        cache = self.cache(backend, stride=stride)
        meta: AttentionMeta = backend.prepare(self.index)
        key, value = self.new_kv()
        if self.scales == (1.0, 1.0):
            backend.write(key, value, cache, meta)
            return backend.run(self.q, cache, meta, self.sinks)
        backend.write(key * self.scales[0], value * self.scales[1], cache, meta, self.scales)
        return backend.run(self.q, cache, meta, self.sinks, self.scales)

    def expected(self) -> Tensor:
        """Float32 attention of the true rows."""
        spec, out, row = self.query, [], 0
        for (length, queries), kv in zip(self.requests, self.kv, strict=True):
            position = torch.arange(length - queries, length)[:, None]
            key = torch.arange(length)
            allowed = (key <= position) & (key >= spec.first_visible(position))
            k, v = kv.to(getattr(torch, spec.cache_dtype)).float() * torch.tensor(self.scales)[:, None, None, None]
            q, k, v = self.q[row : row + queries].float(), k[..., : self.widths[0]], v[..., : self.widths[1]]
            out.append(attend_plain(q[None], k[None], v[None], allowed[None], spec.scale, spec.softcap, self.sinks)[0])
            row += queries
        return torch.cat(out)


def error(out: Tensor, expected: Tensor) -> float:
    """Relative error in the 2-norm."""
    return float((out.double() - expected.double()).norm() / expected.double().norm())
