"""fp8 GEMMs against exact ones of the same quantized values, on a GPU with fp8 support, or else by torch's fp8 GEMM on
the CPU."""

from __future__ import annotations

import pytest
import torch
from gpus import FP8, needs_hopper
from torch import Tensor

from llmk.reference.quantize import quantize_fp8_block, quantize_fp8_channel, quantize_fp8_tensor
from llmk.reference.quantized_weight import (
    prepare_fp8_block,
    prepare_fp8_channel,
    prepare_fp8_tensor,
    prepare_fp8_tensor_by_channel,
)
from llmk_cuda import fp8

DEVICE = torch.device("cuda" if FP8 else "cpu")
ROWWISE = {
    "tensor": (quantize_fp8_tensor, prepare_fp8_tensor, prepare_fp8_tensor_by_channel),
    "channel": (quantize_fp8_channel, prepare_fp8_channel, prepare_fp8_channel),
}
ROWS = (1, 3, 16, 17, 130)
OF_ROUNDING = 6e-3
"""Relative to the norm: a bfloat16 result, and sums that the tensor cores keep in less than float32."""
OF_FP8 = 0.06
"""Relative to the norm: two operands with 3 bits of mantissa."""


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def error(found: Tensor, exact: Tensor) -> float:
    assert found.dtype == torch.bfloat16
    assert found.shape == exact.shape
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ROWWISE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 16), (48, 144), (512, 256)])
def test_rowwise(granularity: str, bias: bool, outputs: int, inputs: int) -> None:
    torch.manual_seed(3)
    quantize, reference, prepare = ROWWISE[granularity]
    weight = draw(outputs, inputs) * torch.rand(outputs, 1, device=DEVICE, dtype=torch.bfloat16)
    stored = quantize(weight)
    offset = draw(outputs) if bias else None
    added = 0 if offset is None else offset.double()
    for rows in ROWS:
        x = draw(rows, inputs) * torch.logspace(-3, 3, rows, device=DEVICE, dtype=torch.bfloat16)[:, None]
        values, scale = fp8.quantize_rows(x)
        exact = (values.double() * scale.double()) @ reference(stored).dequantize(torch.float64).t()
        found = fp8.linear_rowwise(x, prepare(stored), offset)
        assert error(found, exact + added) < OF_ROUNDING
        assert error(found, x.double() @ weight.double().t() + added) < OF_FP8


@needs_hopper
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(128, 512), (208, 512), (1536, 1024)])
def test_block(bias: bool, outputs: int, inputs: int) -> None:
    torch.manual_seed(4)
    weight = draw(outputs, inputs)
    stored = quantize_fp8_block(weight)
    offset = draw(outputs) if bias else None
    added = 0 if offset is None else offset.double()
    for rows in ROWS:
        x = draw(rows, inputs) * torch.logspace(-2, 2, inputs // 128, device=DEVICE).repeat_interleave(128).bfloat16()
        values, scale = (part[:rows].double() for part in fp8.quantize_groups(x))
        wide = values * scale.repeat_interleave(128, dim=1)
        exact = wide @ prepare_fp8_block(stored).dequantize(torch.float64).t()
        found = fp8.linear_block(x, prepare_fp8_block(stored), offset)
        assert error(found, exact + added) < OF_ROUNDING
        assert error(found, x.double() @ weight.double().t() + added) < OF_FP8


def test_rows_are_quantized_alone_and_within_half_a_step() -> None:
    x = draw(5, 64)
    x[1] = 0
    x[2] *= 1e4
    values, scale = fp8.quantize_rows(x)
    assert values.dtype == torch.float8_e4m3fn
    assert scale.shape == (5, 1)
    assert torch.equal(values[1].float(), torch.zeros(64, device=DEVICE))
    steps = torch.maximum(x.float().abs() * 2**-4, scale * 2**-10)
    assert ((values.float() * scale - x.float()).abs() <= steps * 1.01).all()
    for row in range(5):
        alone = fp8.quantize_rows(x[row : row + 1])
        assert torch.equal(alone[0].view(torch.uint8), values[row : row + 1].view(torch.uint8))
        assert torch.equal(alone[1], scale[row : row + 1])


def test_groups_have_scales_of_their_own_in_the_order_that_cublas_reads() -> None:
    x = draw(4, 384)
    x[:, 128:256] *= 100
    values, scale = fp8.quantize_groups(x)
    assert (scale.shape, scale.stride()) == ((4, 3), (1, 4))
    assert (scale[:, 1] > 10 * scale[:, 0]).all()
    wide = values.float() * scale.repeat_interleave(128, dim=1)
    torch.testing.assert_close(wide, x.float(), rtol=2**-4, atol=1e-2)


def test_rows_of_views_and_of_no_tokens_are_quantized() -> None:
    x = draw(256, 8).t()
    for quantize in (fp8.quantize_rows, fp8.quantize_groups):
        values, scale = quantize(x)
        expected = quantize(x.contiguous())
        assert torch.equal(values.view(torch.uint8), expected[0].view(torch.uint8))
        assert torch.equal(scale, expected[1])
        assert values.stride() == (256, 1), "operands' rows of inputs are contiguous"
    assert fp8.quantize_rows(x[:0])[0].shape == (0, 256)


@needs_hopper
def test_no_rows_are_multiplied() -> None:
    stored = prepare_fp8_block(quantize_fp8_block(draw(128, 512)))
    assert fp8.linear_block(draw(0, 512), stored, None).shape == (0, 128)


def test_groups_are_padded_with_rows_of_zeros() -> None:
    x = draw(5, 640)
    values, scale = fp8.quantize_groups(x)
    assert (values.shape, scale.shape, scale.stride()) == ((8, 640), (8, 5), (1, 8))
    assert not values[5:].float().any()
    wide = values[:5].float() * scale[:5].repeat_interleave(128, dim=1)
    torch.testing.assert_close(wide, x.float(), rtol=2**-4, atol=1e-2)
