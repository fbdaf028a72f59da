"""Latent attention against float32 attention over the same rows side by side, and its ops against their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from latent_steps import LatentStep, latent_query
from paged import DEVICE, error
from test_attention import BOUND, CHUNKED, DECODE, MIXED, STEPS

from llmk_triton.attention import prefill_schedule
from llmk_triton.common.targets import DecodeConfig, Tile
from llmk_triton.latent.backend import LatentAttention


def small(backend: LatentAttention) -> LatentAttention:
    """With tiles so small that short requests have several."""
    backend.prefill_tile = Tile(8, 8, 1, 1)
    backend.few = backend.many = DecodeConfig(Tile(8, 8, 1, 1), 4, 8)
    return backend


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("rope", [16, 0])
def test_agrees_with_plain_attention(step: str, rope: int) -> None:
    case = LatentStep(latent_query(rope=rope), STEPS[step])
    out = case.run(small(LatentAttention(case.query, DEVICE)))
    assert error(out, case.expected()) < BOUND[torch.float32]
