"""Native products against the reference, at awkward shapes and on every level of instructions that this processor
has."""

from __future__ import annotations

import pytest
import torch

from llmk.reference import linear as reference
from llmk.reference.tiles import cancelling
from llmk_cpu.native.linear import linear
from llmk_testing.invariance import check_rows
from llmk_testing.tolerance import BOUNDS, Right, check

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(1, 7), (7, 1), (33, 130), (1000, 61), (257, 1040), (50, 2100)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    outputs, inputs = shape
    weight, bias = torch.randn(shape).to(dtype), torch.randn(outputs).to(dtype)
    for rows in (1, 2, 3, 5, 17, 70, 130):
        x = torch.randn(rows, inputs + 3).to(dtype)[:, 2 : 2 + inputs]
        for offset in (None, bias):
            exact = reference.linear(x.double(), weight.double(), None if offset is None else offset.double())
            check(linear(x, weight, offset), Right(exact, dtype), f"{rows} rows")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_batch_invariant(dtype: torch.dtype) -> None:
    for shape in ((64, 96), (33, 130), (100, 2048), (1, 7)):
        rows, weight = cancelling(150, shape, dtype)
        check_rows(lambda x, weight=weight: linear(x, weight, None), rows)


def test_no_rows_and_parts_of_a_weight() -> None:
    weight = torch.randn(40, 64).bfloat16()
    assert linear(torch.empty(0, 64).bfloat16(), weight, None).shape == (0, 40)
    x, part = torch.randn(3, 32).bfloat16(), weight[8:19, 16:48]
    torch.testing.assert_close(linear(x, part, None), reference.linear(x, part, None))
