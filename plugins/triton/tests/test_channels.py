"""Short convolutions and Mamba-1's scan against the reference: results, states and snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers import error, make_step
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent import selective_scan as reference_scan
from llmk.reference.recurrent import short_conv as reference_conv
from llmk_triton.recurrent.selective_scan import selective_scan, selective_scan_by_token
from llmk_triton.recurrent.short_conv import short_conv

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 8e-3}
DECODE = [(20, 1), (31, 1), (0, 1), (32, 1)]
MIXED = [(0, 12), (20, 1), (3, 3), (15, 9)]
"""Tokens before the step and in it; requests with up to 8 are computed token by token."""
SCANS = {"chunks": selective_scan, "by token": selective_scan_by_token}


def drawn(seed: int = 0) -> Callable[..., Tensor]:
    random = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=random)


def filled(draw: Callable[..., Tensor], blocks: int, written: list[int], dtype: torch.dtype, *shape: int) -> Tensor:
    """A cache, strided in a pool, that is NaN but for the blocks that were written."""
    pool = torch.full((blocks, 2, *shape), torch.nan, dtype=dtype)[:, 1]
    pool[written] = draw(len(written), *shape).to(dtype)
    return pool


def agree(
    actual: Callable[..., Tensor], expected: Callable[..., Tensor], cache: Tensor, step: CacheStep, dtype: torch.dtype
) -> None:
    """Both get a cache and a step, and leave the same in a copy of the cache; rows of padding are zeros."""
    real, own, like = int(step.query_start[-1]), cache.clone(), cache.clone()
    found = actual(own, step)
    assert not found[real:].any()
    assert error(found[:real], expected(like)) < BOUNDS[dtype]
    assert error(own, like) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(
    ("work", "block_size"), [(DECODE, 16), pytest.param(MIXED, 4, marks=pytest.mark.slow)], ids=["decode", "mixed"]
)
@pytest.mark.parametrize(
    ("channels", "kernel", "options"),
    [(40, 4, {"activation": "silu"}), (150, 3, {"gated": True}), (40, 1, {})],
    ids=["silu", "gated", "plain"],
)
def test_short_conv(
    channels: int, kernel: int, options: dict[str, Any], work: list[Any], block_size: int, dtype: torch.dtype
) -> None:
    draw = drawn()
    step, written, blocks = make_step(work, block_size, padding=2)
    without, _, _ = make_step(work, block_size)
    x = draw(step.num_tokens, channels * (3 if "gated" in options else 1)).to(dtype)
    weight, bias = draw(channels, kernel).to(dtype), draw(channels).to(dtype) if kernel > 1 else None
    cache = filled(draw, blocks, written, dtype, kernel - 1, channels)
    agree(
        lambda cache, step: short_conv(x, weight, bias, (cache,), step, **options),
        lambda cache: reference_conv.short_conv(x[: without.num_tokens], weight, bias, (cache,), without, **options),
        cache,
        step,
        dtype,
    )


def test_drafts_of_short_convs() -> None:
    draw = drawn()
    step, written, blocks = make_step([(0, 2), (20, 1), (15, 1)], 4, drafts=3, late=[0, 2, 3])
    x, weight = draw(step.num_tokens, 120), draw(40, 3)
    cache, tails = filled(draw, blocks, written, torch.float32, 2, 40), draw(4, 3, 40)
    own, like = ((cache.clone(), tails.clone()) for _ in range(2))
    found = short_conv(x, weight, None, own, step, gated=True)
    assert error(found, reference_conv.short_conv(x, weight, None, like, step, gated=True)) < 2e-5
    assert error(own[0], like[0]) < 2e-5
    assert error(own[1], like[1]) < 2e-5


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16], ids=["wide states", "narrow states"])
@pytest.mark.parametrize(
    ("work", "block_size", "size"),
    [
        (DECODE, 16, 10),
        pytest.param(MIXED, 4, 10, marks=pytest.mark.slow),
        pytest.param([(0, 70), (5, 40)], 100, 16, marks=pytest.mark.slow),
    ],
    ids=["decode", "mixed", "long"],
)
@pytest.mark.parametrize("name", SCANS)
def test_selective_scan(
    name: str, work: list[Any], block_size: int, size: int, kept: torch.dtype, dtype: torch.dtype
) -> None:
    draw, channels = drawn(), 20
    step, written, blocks = make_step(work, block_size, padding=2)
    without, _, _ = make_step(work, block_size)
    x, dt = (draw(step.num_tokens, channels).to(dtype) for _ in range(2))
    gate = draw(step.num_tokens, 2 * channels).to(dtype)[:, channels:]
    _, b, c = draw(step.num_tokens, 3 * size).to(dtype).chunk(3, 1)
    decay, d, bias = -0.1 - draw(channels, size).abs(), draw(channels), draw(channels)
    real = without.num_tokens
    agree(
        lambda cache, step: SCANS[name](x, dt, decay, b, c, d, bias, gate, cache, step),
        lambda cache: reference_scan.selective_scan(
            *(x[:real], dt[:real], decay, b[:real], c[:real], d, bias, gate[:real]), cache, without
        ),
        filled(draw, blocks, written, kept, channels, size),
        step,
        dtype if kept == torch.float32 else torch.bfloat16,
    )
