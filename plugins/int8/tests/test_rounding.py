"""Weights that are rounded in pieces."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from llmk.reference.quantize import quantize_int8_channel
from llmk_int8.examples import restored_groups
from llmk_int8.rounding import int4_groups, int8_rows

SHAPES = [(1, 32), (300, 1024), (7, 96)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_rounded_as_by_the_reference(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).bfloat16()
    weight[0, :5] = 0
    found, expected = int8_rows(weight), quantize_int8_channel(weight)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_lose_less_than_q4_0_does(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    found = restored_groups(int4_groups(weight))
    kind = gguf.GGMLQuantizationType.Q4_0
    other = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
    lost = float((found - weight).square().sum())
    assert lost <= float(np.square(other - weight.numpy()).sum())
    assert lost < 0.01 * float(weight.square().sum())


def test_groups_of_one_value_or_none_are_exact() -> None:
    weight = torch.zeros(2, 64)
    weight[0, 40], weight[1, 3] = -2.0, 0.5
    assert torch.equal(restored_groups(int4_groups(weight)), weight)
