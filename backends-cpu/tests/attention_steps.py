"""Queries of attention, and steps of requests whose blocks are in a random order."""

from __future__ import annotations

from typing import Any

import torch

from llmk.api import AttentionQuery, CacheStep, Host
from llmk_cpu.probe import probe

FACTS = probe(Host()).facts
assert FACTS is not None


def query_of(dtype: str = "float32", **fields: Any) -> AttentionQuery:
    given = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 16, "cache_dtype": dtype} | fields
    return AttentionQuery(platform=FACTS, site="attention", dtype=dtype, scale=given["head_dim"] ** -0.5, **given)


def step_of(query: AttentionQuery, lengths: list[int], queries: list[int]) -> CacheStep:
    """Requests with blocks in a random order, the same for the same lengths."""
    size = query.block_size
    order = torch.randperm(blocks_of(query, lengths), generator=torch.Generator().manual_seed(0)).int()
    table = torch.zeros(len(lengths), -(-max(lengths) // size), dtype=torch.int32)
    slots = []
    for row, length, asked in zip(table, lengths, queries, strict=True):
        count = -(-length // size)
        row[:count], order = order[:count], order[count:]
        slots += [int(row[t // size]) * size + t % size for t in range(length - asked, length)]
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    return CacheStep(
        starts, torch.tensor(lengths).int(), table, torch.tensor(slots), len(lengths), sum(queries), max(queries),
        max(lengths), size, tuple(queries), tuple(lengths),
    )  # fmt: skip


def blocks_of(query: AttentionQuery, lengths: list[int]) -> int:
    return sum(-(-length // query.block_size) for length in lengths)
