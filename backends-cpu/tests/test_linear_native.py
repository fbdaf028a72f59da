"""Native GEMMs against the reference, at awkward shapes; ``test_levels.py`` runs this file at lower levels too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmk.api import LinearKernel
from llmk.reference import linear as reference
from llmk.reference.quantize import quantize_int4_group, quantize_int8_channel, quantize_int8_group
from llmk.reference.quantized_weight import prepare_int4_group, prepare_int8_channel, prepare_int8_group
from llmk.reference.tiles import cancelling
from llmk_cpu.native.library import library
from llmk_cpu.native.linear import linear, linear_many
from llmk_cpu.native.quantized import (
    Grouped,
    NibbleWeight,
    linear_groups,
    linear_groups_many,
    linear_int8,
    prepare_int4,
    prepare_int8,
)
from llmk_testing.invariance import check_rows
from llmk_testing.tolerance import Right, check

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(1, 7), (7, 1), (33, 130), (1000, 61), (257, 1040), (50, 2100)]


@pytest.mark.parametrize("kernel", [linear, linear_many])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_reference(shape: tuple[int, int], dtype: torch.dtype, kernel: LinearKernel) -> None:
    outputs, inputs = shape
    weight, bias = torch.randn(shape).to(dtype), torch.randn(outputs).to(dtype)
    for rows in (1, 2, 3, 5, 17, 70, 130):
        x = torch.randn(rows, inputs + 3).to(dtype)[:, 2 : 2 + inputs]
        for offset in (None, bias):
            exact = reference.linear(x.double(), weight.double(), None if offset is None else offset.double())
            check(kernel(x, weight, offset), Right(exact, dtype), f"{rows} rows")


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_take_several_passes_over_blocks_of_the_weight(threads: int) -> None:
    x, weight = torch.randn(401, 400), torch.randn(300, 400)
    before = library().threads
    library().set_threads(threads)
    try:
        found = linear_many(x, weight, None)
    finally:
        library().set_threads(before)
    check(found, Right(x.double() @ weight.double().T, torch.float32), f"{threads} threads")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_batch_invariant(dtype: torch.dtype) -> None:
    for shape in ((64, 96), (33, 130), (100, 2048), (1, 7)):
        rows, weight = cancelling(150, shape, dtype)
        check_rows(lambda x, weight=weight: linear(x, weight, None), rows)


@pytest.mark.parametrize("kernel", [linear, linear_many])
def test_no_rows_and_parts_of_a_weight(kernel: LinearKernel) -> None:
    weight = torch.randn(40, 64).bfloat16()
    assert kernel(torch.empty(0, 64).bfloat16(), weight, None).shape == (0, 40)
    x, part = torch.randn(3, 32).bfloat16(), weight[8:19, 16:48]
    torch.testing.assert_close(kernel(x, part, None), reference.linear(x, part, None))


NARROW = (torch.bfloat16, torch.float16)
GROUPS: dict[int, tuple[Any, Any, Any]] = {
    4: (quantize_int4_group, prepare_int4, prepare_int4_group),
    8: (quantize_int8_group, prepare_int8, prepare_int8_group),
}
"""By bits: what quantizes, and prepares for the kernels and for the reference."""


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_equals_the_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    outputs, inputs = shape
    weight = prepare_int8_channel(quantize_int8_channel(torch.randn(shape)))
    bias = torch.randn(outputs).to(dtype)
    for rows in (1, 2, 3, 5, 17, 70, 130):
        x = torch.randn(rows, inputs + 3).to(dtype)[:, 2 : 2 + inputs]
        exact = reference.linear(x.double(), weight.dequantize(torch.float32).double(), bias.double())
        check(linear_int8(x, weight, bias), Right(exact, dtype), f"{rows} rows")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("zeros", ["none", "whole", "any"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "size",
    [
        (1, 32, 32),
        (33, 160, 32),
        (50, 256, 128),
        (7, 1152, 128),
        (7, 2112, 2112),
        (9, 48, 16),
        (1700, 64, 32),
        (35, 1184, 16),
    ],
)
def test_groups_equal_the_reference(size: tuple[int, int, int], bits: int, zeros: str, dtype: torch.dtype) -> None:
    outputs, inputs, group = size
    quantize, prepare, meaning = GROUPS[bits]
    parameters = quantize(torch.randn(outputs, inputs), group)
    if zeros != "none":
        zero = torch.randn(outputs, inputs // group) * 3 + 5
        parameters["weight_zero_point"] = zero.round().to(torch.int8) if zeros == "whole" else zero
    for scales in (torch.float32, torch.float16, torch.bfloat16):
        parameters["weight_scale"] = parameters["weight_scale"].to(scales)
        weight, bias = prepare(parameters), torch.randn(outputs).to(dtype)
        exact = meaning(parameters).dequantize(torch.float32).double()
        for rows in (1, 3, 17, 130):
            x = torch.randn(rows, inputs).to(dtype)
            right = Right(reference.linear(x.double(), exact, bias.double()), dtype)
            check(linear_groups(x, weight, bias), right, f"{rows} rows")
            check(linear_groups_many(x, weight, bias), right, f"{rows} rows, widened")


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_groups_are_widened_as_the_reference_does(bits: int) -> None:
    quantize, prepare, meaning = GROUPS[bits]
    parameters = quantize(torch.randn(33, 160), 32)
    parameters["weight_zero_point"] = torch.rand(33, 5)
    weight = prepare(parameters)
    assert isinstance(weight, Grouped)
    index = torch.tensor([32, 0, 7, 7])
    for dtype in DTYPES:
        expected = meaning(parameters).dequantize(dtype)
        assert torch.equal(weight.rows(None, dtype), expected)
        assert torch.equal(weight.rows(index, dtype), expected[index])
        assert torch.equal(meaning(parameters).rows(index, dtype), expected[index])


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_weights_in_groups_are_batch_invariant(bits: int) -> None:
    quantize, prepare, _ = GROUPS[bits]
    for shape in ((64, 96), (33, 128), (100, 2048)):
        rows, weight = cancelling(150, shape, torch.bfloat16)
        packed = prepare(quantize(weight.float(), 32))
        check_rows(lambda x, packed=packed: linear_groups(x, packed, None), rows)


def test_scales_are_held_in_16_bits_where_that_is_exact() -> None:
    parameters = quantize_int4_group(torch.randn(8, 64), 32)
    dtypes = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        parameters["weight_scale"] = parameters["weight_scale"].to(dtype)
        weight = prepare_int4(parameters)
        assert isinstance(weight, NibbleWeight)
        dtypes.append(weight.scale.dtype)
    assert dtypes == [torch.float32, torch.float16, torch.bfloat16]


def test_a_row_that_is_not_finite_is_not_a_number_and_zeros_stay_zeros() -> None:
    weight = prepare_int8_channel(quantize_int8_channel(torch.randn(5, 64)))
    x = torch.randn(4, 64).bfloat16()
    x[0, 3], x[1, 63], x[2] = torch.inf, torch.nan, 0
    out = linear_int8(x, weight, None)
    assert out[:2].isnan().all()
    assert not out[2].any()
    assert out[3].isfinite().all()
