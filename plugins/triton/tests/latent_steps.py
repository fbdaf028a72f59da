"""Random steps of latent attention: as :mod:`paged`, over rows that are keys, and values in part."""

from __future__ import annotations

from typing import Any

import torch
from paged import Step, attention_query
from torch import Tensor

from llmk.api import AttentionQuery
from llmk.reference.attention.contiguous import attend_plain
from llmk_triton.latent.backend import LatentAttention


def latent_query(
    dtype: torch.dtype = torch.float32, *, latent: int = 48, rope: int = 16, **changes: Any
) -> AttentionQuery:
    """A query with four heads, unless ``changes`` say otherwise."""
    facts: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 1, "head_dim": latent + rope, "latent_dim": latent}
    return attention_query(dtype, **facts | changes)


class LatentStep(Step):
    """A :class:`Step` whose keys are latent rows; what it has of values is not used."""

    def cache(self, backend: LatentAttention, *, stride: int = 1) -> Tensor:  # type: ignore[override]
        layout = backend.cache_layout(self.num_blocks)
        shape = (layout.shape[0], stride, *layout.shape[1:])
        cache = torch.full(shape, float("nan"), dtype=getattr(torch, layout.dtype))[:, 0]
        for row, ((length, queries), kv) in enumerate(zip(self.requests, self.kv, strict=True)):
            slots = self.slots(row, 0, length - queries)
            size = self.query.block_size
            cache[slots // size, slots % size] = kv[0, : length - queries, 0].to(cache.dtype)
        return cache

    def run(self, backend: LatentAttention, *, stride: int = 1) -> Tensor:  # type: ignore[override]
        cache, meta = self.cache(backend, stride=stride), backend.prepare(self.index)
        key, scales = self.new_kv()[0], self.scales
        backend.write(key * scales[0], None, cache, meta, scales)
        return backend.run(self.q, cache, meta, None, scales)

    def expected(self) -> Tensor:
        spec, out, row = self.query, [], 0
        for (length, queries), kv in zip(self.requests, self.kv, strict=True):
            allowed = torch.arange(length) <= torch.arange(length - queries, length)[:, None]
            rows = kv[:1].to(getattr(torch, spec.cache_dtype)).float() * self.scales[0]
            q = self.q[row : row + queries].float()
            out.append(attend_plain(q[None], rows, rows, allowed[None], spec.scale, None, None)[0])
            row += queries
        return torch.cat(out)[..., : spec.latent_dim]
