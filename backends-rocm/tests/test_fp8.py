"""fp8 in both of AMD's formats: what a checkpoint's bits mean, and GEMMs, on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmk.reference.quantize import quantize_fp8_channel, quantize_fp8_tensor
from llmk.reference.quantized_weight import (
    ScaledWeight,
    prepare_fp8_channel,
    prepare_fp8_tensor,
    prepare_fp8_tensor_by_channel,
)
from llmk_rocm import fp8
from llmk_rocm.quantize import quantize_rows

OCP, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
PREPARED = {
    "tensor": (
        quantize_fp8_tensor,
        prepare_fp8_tensor,
        {OCP: prepare_fp8_tensor_by_channel, FNUZ: fp8.prepare_tensor_fnuz},
    ),
    "channel": (quantize_fp8_channel, prepare_fp8_channel, {OCP: prepare_fp8_channel, FNUZ: fp8.prepare_channel_fnuz}),
}


def every_byte(dtype: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype).view(1, 256)


def test_the_formats_differ_as_stated() -> None:
    ocp, fnuz = every_byte(OCP).float(), every_byte(FNUZ).float()
    numbers = ~ocp.isnan()
    numbers[0, 0x80] = False
    assert torch.equal(ocp[numbers], 2 * fnuz[numbers])
    assert fnuz.isnan().nonzero().tolist() == [[0, 0x80]]
    assert (torch.finfo(OCP).max, torch.finfo(FNUZ).max) == (448, 240)


def test_every_number_of_a_checkpoint_keeps_its_value() -> None:
    values = every_byte(OCP)
    numbers = ~values.float().isnan()
    weight = ScaledWeight(values, torch.tensor([[0.37]]), (1, 256))
    found = fp8.as_fnuz(weight)
    assert found.values.dtype == FNUZ
    assert torch.equal(found.dequantize(torch.float64)[numbers], weight.dequantize(torch.float64)[numbers])
    assert not found.values.float().isnan().any()
    assert torch.equal(weight.values.view(torch.uint8), torch.arange(256, dtype=torch.uint8)[None]), "it is a copy"


@pytest.mark.parametrize("granularity", PREPARED)
@pytest.mark.parametrize("dtype", [OCP, FNUZ])
def test_prepared_weights_are_the_checkpoints(granularity: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    quantize, reference, prepare = PREPARED[granularity]
    stored = quantize(torch.randn(48, 80, dtype=torch.bfloat16) * torch.rand(48, 1))
    found = prepare[dtype](stored)
    assert (found.values.dtype, found.scale.shape) == (dtype, (48, 1))
    torch.testing.assert_close(found.dequantize(torch.float64), reference(stored).dequantize(torch.float64))


@pytest.mark.parametrize("dtype", [OCP, FNUZ])
def test_rows_are_quantized_alone_and_within_half_a_step(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = torch.randn(5, 72, dtype=torch.bfloat16)
    x[1] = 0
    x[2] *= 1e4
    values, scale = quantize_rows(x, dtype)
    assert (values.dtype, values.shape, scale.shape) == (dtype, x.shape, (5, 1))
    assert not values[1].float().any()
    assert not values.float().isnan().any(), "a negative number that rounds to zero is not the byte of NaN"
    smallest = float(torch.tensor([1], dtype=torch.uint8).view(dtype).float())
    steps = torch.maximum(x.float().abs() * 2**-4, scale * smallest / 2)
    assert ((values.float() * scale - x.float()).abs() <= steps * 1.01).all()
    alone = [quantize_rows(row, dtype) for row in x.split(1)]
    assert torch.equal(torch.cat([v.view(torch.uint8) for v, _ in alone]), values.view(torch.uint8))
    assert torch.equal(torch.cat([s for _, s in alone]), scale)
    turned = quantize_rows(x.t().contiguous().t(), dtype)
    assert torch.equal(turned[0].view(torch.uint8), values.view(torch.uint8))
    assert quantize_rows(x[:0], dtype)[0].shape == (0, 72)


@pytest.mark.parametrize("dtype", [OCP, FNUZ])
@pytest.mark.parametrize("bias", [False, True])
def test_gemms(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(3)
    quantize, reference, prepare = PREPARED["channel"]
    weight = torch.randn(48, 144, dtype=torch.bfloat16) * torch.rand(48, 1, dtype=torch.bfloat16)
    offset = torch.randn(48, dtype=torch.bfloat16) if bias else None
    stored = quantize(weight)
    for rows in (1, 3, 17):
        x = torch.randn(rows, 144, dtype=torch.bfloat16) * torch.logspace(-3, 3, rows, dtype=torch.bfloat16)[:, None]
        values, scale = quantize_rows(x, dtype)
        exact = (values.double() * scale.double()) @ reference(stored).dequantize(torch.float64).t()
        exact = exact if offset is None else exact + offset.double()
        found = fp8.linear_rowwise(x, prepare[dtype](stored), offset)
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).norm() < 6e-3 * exact.norm()
