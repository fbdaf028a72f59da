"""Attention to selected tokens, and what selects them, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.attention import selected as reference
from llmk_triton.latent import selected as kernels

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 8e-3}
DECODE = [(20, 1), (31, 1), (0, 1), (70, 1)]
MIXED = [(0, 12), (20, 1), (3, 9), (90, 2)]
"""Tokens before the step and in it."""


def make_step(work: list[tuple[int, int]], size: int, *, padding: int = 0, beyond: int = 0) -> tuple[CacheStep, Tensor]:
    """A step, and the slots of all tokens before it. Table entries of blocks without tokens name one of NaN."""
    counts, ends = [count for _, count in work], [before + count for before, count in work]
    each = -(-(max(ends) + beyond) // size)
    order = torch.randperm(each * len(work) + 1, generator=torch.Generator().manual_seed(3))
    table, poison = order[:-1].view(len(work), each).clone(), int(order[-1])
    slots = [[int(table[i, at // size]) * size + at % size for at in range(end)] for i, end in enumerate(ends)]
    for i, end in enumerate(ends):
        table[i, -(-end // size) :] = poison
    starts = torch.tensor([0, *counts]).cumsum(0)
    new = [slot for own, (before, _) in zip(slots, work, strict=True) for slot in own[before:]]
    step = CacheStep(
        query_start=torch.cat((starts, starts[-1:].expand(padding))).to(torch.int32),
        seq_lens=torch.tensor([*ends, *[0] * padding], dtype=torch.int32),
        block_table=torch.cat((table, torch.full((padding, each), poison))).to(torch.int32),
        slot_mapping=torch.tensor([*new, *[-1] * padding]),
        num_requests=len(work) + padding,
        num_tokens=sum(counts) + padding,
        max_query_len=max(counts),
        max_seq_len=max(ends) + beyond,
        block_size=size,
    )
    return step, torch.tensor([slot for own, (before, _) in zip(slots, work, strict=True) for slot in own[:before]])


def cache_of(step: CacheStep, before: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """A cache, strided in one pool, NaN where nothing was written."""
    blocks = int(step.block_table.max()) + 2
    cache = torch.full((blocks, 2, step.block_size, width), torch.nan, dtype=dtype)[:, 1]
    cache[before // step.block_size, before % step.block_size] = torch.randn(len(before), width).to(dtype)
    return cache


def error(actual: Tensor, expected: Tensor) -> float:
    assert torch.equal(actual.isnan(), expected.isnan())
    found, wanted = actual.double().nan_to_num(), expected.double().nan_to_num()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("work", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(("heads", "size", "top_k", "block_size"), [(6, 20, 7, 16), (16, 64, 100, 5)])
def test_selects_as_the_reference(
    work: list[tuple[int, int]], heads: int, size: int, top_k: int, block_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    step, before = make_step(work, block_size, padding=2, beyond=20)
    q, k = torch.randn(step.num_tokens, heads, size).to(dtype), torch.randn(step.num_tokens, size).to(dtype)
    weights, cache = torch.randn(step.num_tokens, heads).to(dtype), cache_of(step, before, size, dtype)
    own, like = cache.clone(), cache.clone()
    actual = kernels.select_tokens(q, k, weights, own, step, top_k=top_k)
    expected = reference.select_tokens(q, k, weights, like, step, top_k=top_k)
    assert actual.dtype == torch.int32
    assert torch.equal(actual, expected)
    assert error(own, like) == 0


def test_scores_of_many_tokens_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(kernels, "_MOST_SCORES", 100)
    step, before = make_step(MIXED, 16)
    q, k, weights = (torch.randn(step.num_tokens, *shape) for shape in ((4, 16), (16,), (4,)))
    cache = cache_of(step, before, 16, torch.float32)
    own, like = cache.clone(), cache.clone()
    actual = kernels.select_tokens(q, k, weights, own, step, top_k=9)
    assert torch.equal(actual, reference.select_tokens(q, k, weights, like, step, top_k=9))


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("work", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(
    ("heads", "latent", "rope", "top_k", "block_size"),
    [
        (4, 40, 8, 9, 16),
        pytest.param(70, 16, 4, 200, 5, marks=pytest.mark.slow),
        pytest.param(3, 512, 64, 150, 1, marks=pytest.mark.slow),
    ],
)
def test_attends_as_the_reference(
    work: list[tuple[int, int]],
    heads: int,
    latent: int,
    rope: int,
    top_k: int,
    block_size: int,
    dtype: torch.dtype,
    parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Selected tokens in one part and in several, of which the last ones may be empty; padding comes back as zeros."""
    torch.manual_seed(0)
    monkeypatch.setattr(kernels, "_MOST_PARTS", parts)
    monkeypatch.setattr(kernels, "num_multiprocessors", lambda device: 1 << 10)
    step, before = make_step(work, block_size, padding=2)
    width = latent + rope
    query, row = torch.randn(step.num_tokens, heads, width).to(dtype), torch.randn(step.num_tokens, width).to(dtype)
    picked = torch.full((step.num_tokens, top_k), -1, dtype=torch.int32)
    at = 0
    for start, count in work:
        for position in range(start, start + count):
            own = torch.randperm(position + 1)[:top_k].sort().values
            picked[at, : len(own)] = own.to(torch.int32)
            at += 1
    cache = cache_of(step, before, width, dtype)
    own, like = cache.clone(), cache.clone()
    options: dict[str, Any] = {"scale": 0.2, "latent_dim": latent}
    actual = kernels.selected_attention(query, row, picked, own, step, **options)
    expected = reference.selected_attention(query, row, picked, like, step, **options)
    assert actual.dtype == dtype
    assert error(actual, expected) < BOUNDS[dtype]
    assert not actual[at:].any()
    assert error(own, like) == 0


def test_queries_may_be_parts_of_wider_rows() -> None:
    torch.manual_seed(0)
    step, before = make_step(DECODE, 16)
    wide, row = torch.randn(step.num_tokens, 4, 60)[:, :, :48], torch.randn(step.num_tokens, 60)[:, :48]
    selected = torch.zeros(step.num_tokens, 3, dtype=torch.int32)
    cache = cache_of(step, before, 48, torch.float32)
    own, like = cache.clone(), cache.clone()
    options: dict[str, Any] = {"scale": 0.2, "latent_dim": 40}
    actual = kernels.selected_attention(wide, row, selected, own, step, **options)
    assert error(actual, reference.selected_attention(wide, row, selected, like, step, **options)) < 2e-5


def test_offsets_have_64_bits() -> None:
    """Of the last token's query, whose offset exceeds 32 bits."""
    step, before = make_step([(5, 1), (6, 1), (7, 1)], 16)
    stride = (1 << 30) + 8
    query = torch.empty_strided((3, 1, 24), (stride, 24, 1), dtype=torch.bfloat16)
    values = torch.randn(3, 1, 24).bfloat16()
    query.copy_(values)
    cache, row = cache_of(step, before, 24, torch.bfloat16), torch.randn(3, 24).bfloat16()
    selected = torch.tensor([[0, 5], [1, 6], [2, 7]], dtype=torch.int32)
    options: dict[str, Any] = {"scale": 0.2, "latent_dim": 16}
    actual = kernels.selected_attention(query, row, selected, cache.clone(), step, **options)
    expected = kernels.selected_attention(values, row, selected, cache.clone(), step, **options)
    assert torch.equal(actual, expected)
