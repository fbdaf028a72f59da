"""int8 GEMMs against exact ones of the same rounded values, on a GPU, or else by torch's integer GEMM on the CPU."""

from __future__ import annotations

import pytest
import torch
from gpus import FP8
from torch import Tensor

from llmk.reference.quantize import quantize_int8_channel
from llmk.reference.quantized_weight import prepare_int8_channel
from llmk_cuda import int8

DEVICE = torch.device("cuda" if FP8 else "cpu")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 16), (1040, 144)])
def test_linear(bias: bool, outputs: int, inputs: int) -> None:
    torch.manual_seed(3)
    weight = draw(outputs, inputs) * torch.rand(outputs, 1, device=DEVICE, dtype=torch.bfloat16)
    prepared, offset = prepare_int8_channel(quantize_int8_channel(weight)), draw(outputs) if bias else None
    added = 0 if offset is None else offset.double()
    for rows in (1, 17, 40):
        x = draw(rows, inputs) * torch.logspace(-3, 3, rows, device=DEVICE, dtype=torch.bfloat16)[:, None]
        values, scale = int8.rounded(x)
        assert not values[rows:].any()
        assert (values[:rows].double() * scale[:rows, None] - x.double()).abs().le(0.501 * scale[:rows, None]).all()
        exact = (values[:rows].double() * scale[:rows, None]) @ prepared.dequantize(torch.float64).t() + added
        found = int8.linear(x, prepared, offset)
        assert found.dtype == x.dtype
        torch.testing.assert_close(found.double(), exact, rtol=2.0**-7, atol=1e-6)


def test_rows_of_a_view_and_no_rows() -> None:
    weight, x = prepare_int8_channel(quantize_int8_channel(draw(32, 64))), draw(5, 2, 64)
    assert torch.equal(int8.linear(x[:, 1], weight, None), int8.linear(x[:, 1].contiguous(), weight, None))
    assert int8.linear(x[:0, 1], weight, None).shape == (0, 32)
    assert not int8.linear(torch.zeros_like(x[:, 0]), weight, None).any()
