"""Batch-invariant tile sizes, for torch's GEMM and for GEMMs with planted differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.reference.tiles import SIZES, TiledWeight, aligned, cancelling, in_tiles, invariant_sizes, matmul_transposed

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    (64, 64),
    (33, 130),
    (60, 2048),
    (257, 515),
    (1000, 61),
    (512, 256),
    (5, 64),
    (1, 7),
    (1, 515),
    (7, 1),
    (20, 13),
    (2, 300),
]


def plain(num_rows: int, shape: tuple[int, int], dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    rows, weight = torch.randn(num_rows, shape[1], generator=random), torch.randn(shape, generator=random)
    return rows.to(dtype), weight.to(dtype)


@pytest.mark.parametrize("numbers", [cancelling, plain])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_a_row_is_bit_identical_at_every_position(numbers: Any, dtype: torch.dtype, threads: int) -> None:
    """With other numbers than those by which the sizes were found."""
    for shape in SHAPES:
        sizes = invariant_sizes(matmul_transposed, shape, dtype, CPU)
        rows, weight = numbers(max(SIZES), shape, dtype, seed=1)
        expected = matmul_transposed(rows[: sizes[-1]], weight)
        for size in sizes:
            for shift in {0, 1, size // 2, size - 1}:
                found = matmul_transposed(rows[:size].roll(shift, 0), weight).roll(-shift, 0)
                assert torch.equal(found, expected[:size]), (shape, size, shift)


def test_a_size_with_a_differing_position_is_not_used() -> None:
    def gemm(x: Tensor, weight: Tensor) -> Tensor:
        out = matmul_transposed(x, weight)
        if x.shape[0] == 16:
            out[11] += 1
        return out + (x.shape[0] == 8)

    sizes = invariant_sizes(gemm, (64, 64), torch.float64, CPU)
    assert sizes == tuple(
        size for size in invariant_sizes(matmul_transposed, (64, 64), torch.float64, CPU) if size not in (8, 16)
    )


def test_one_row_remains_if_no_larger_size_is_invariant() -> None:
    def gemm(x: Tensor, weight: Tensor) -> Tensor:
        return matmul_transposed(x, weight) + torch.arange(x.shape[0])[:, None]

    assert invariant_sizes(gemm, (8, 8), torch.float32, CPU) == (1,)
    assert invariant_sizes(lambda x, weight: x * float("nan"), (8, 8), torch.float32, CPU) == (1,)


def test_equal_calls_are_tested_once() -> None:
    calls = []

    def gemm(x: Tensor, weight: Tensor) -> Tensor:
        calls.append(x.shape)
        return matmul_transposed(x, weight)

    for _ in range(2):
        invariant_sizes(gemm, (300, 8), torch.float32, CPU)
    assert len(calls) == 4 * len(SIZES)
    assert {shape[0] for shape in calls} == set(SIZES)


@pytest.mark.parametrize("sizes", [SIZES, (1,), (4, 64), (16,)], ids=str)
def test_rows_are_split_into_tiles_of_the_given_sizes(sizes: tuple[int, ...]) -> None:
    for rows in (*range(140), 1000):
        seen = []

        def gemm(x: Tensor, weight: Tensor, seen: list[int] = seen) -> Tensor:
            seen.append(x.shape[0])
            assert x.is_contiguous()
            assert x.data_ptr() % 64 == 0
            return x @ weight.T

        x = torch.arange(3.0 * rows).view(rows, 3)
        assert torch.equal(TiledWeight(gemm, torch.eye(3), sizes).multiply(x), x)
        assert set(seen) <= set(sizes)
        assert sum(seen) <= max(rows * 4 / 3 + sizes[0], sizes[0])


def test_tiles_of_several_matrices() -> None:
    x, weight = torch.randn(2, 3, 70, 5), torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(in_tiles(matmul_transposed, x, weight, (4, 16)), x @ weight.mT)


def test_alignment() -> None:
    memory = torch.arange(40.0)
    assert aligned(memory) is memory
    moved = aligned(memory[1:])
    assert moved.data_ptr() % 64 == 0
    assert torch.equal(moved, memory[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_results_are_zero(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, weight = (numbers.double() for numbers in cancelling(4, shape, dtype))
    assert (rows.shape, weight.shape) == ((4, shape[1]), shape)
    assert bool(((rows @ weight.T).abs() <= 1e-12 * (rows.abs() @ weight.abs().T)).all())
    if shape[1] > 1:
        assert rows.unique(dim=0).shape[0] == 4
        assert weight.unique(dim=0).shape[0] == shape[0]
