"""Smooth functions against float64, and the independence of their bits from where an element lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llmk.reference.pointwise import sigmoid, silu, softplus

FUNCTIONS = (sigmoid, silu, softplus)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_equals_torchs_own_in_float64(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.cat((torch.linspace(-80, 80, 4001), torch.tensor([-1e4, -200.0, 200.0, 1e4])))
    exact = getattr(torch.nn.functional, function.__name__)(x.double())
    torch.testing.assert_close(function(x).double(), exact, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_batch_invariant(function: Callable[[Tensor], Tensor], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for columns in (1, 7, 33, 100):
            x = 3 * torch.randn(70_000 // columns, columns)
            whole = function(x)
            assert all(torch.equal(function(x[i : i + n]), whole[i : i + n]) for i in range(0, 999, 27) for n in (1, 5))
    finally:
        torch.set_num_threads(before)
