"""Comparisons allow the rounding to the dtype of a result, and no more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmk_testing.tolerance import Right, check

HALVES = (torch.float16, torch.bfloat16)


def small(dtype: torch.dtype) -> Tensor:
    """Numbers around the smallest normal one of a dtype, in float64."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(64, 64, generator=random, dtype=torch.float64) * torch.finfo(dtype).smallest_normal / 50


@pytest.mark.parametrize("dtype", HALVES)
def test_the_nearest_of_subnormal_numbers_is_right(dtype: torch.dtype) -> None:
    values = small(dtype)
    check(values.to(dtype), Right(values, dtype), "rounded")


@pytest.mark.parametrize("dtype", [torch.float16])
def test_subnormal_numbers_that_become_zero_are_wrong(dtype: torch.dtype) -> None:
    values = small(dtype)
    with pytest.raises(AssertionError, match="flushed"):
        check(torch.zeros_like(values, dtype=dtype), Right(values, dtype), "flushed")


@pytest.mark.parametrize("dtype", HALVES)
def test_truncation_is_no_rounding_of_large_numbers(dtype: torch.dtype) -> None:
    values = small(dtype) * 1e4
    step = 2.0 ** torch.frexp(values)[1] * torch.finfo(dtype).eps
    with pytest.raises(AssertionError, match="off by a few steps"):
        check((values + 8 * step).to(dtype), Right(values, dtype), "off by a few steps")
