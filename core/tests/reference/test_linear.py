"""GEMMs with plain and quantized weights: dequantization element by element in float64, and the rounding error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.reference import quantize, quantized_weight
from llmk.reference.linear import linear, linear_dequantized, linear_invariant, prepare_invariant, prepare_plain

DTYPES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def int4_by_entry(parameters: dict[str, Tensor], group: int) -> Tensor:
    packed, scale = parameters["weight_packed"], parameters["weight_scale"]
    zero = parameters.get("weight_zero_point")
    out = torch.empty(packed.shape[0], packed.shape[1] * 2, dtype=torch.float64)
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            byte = int(packed[row, column // 2])
            nibble = byte >> 4 if column % 2 else byte & 15
            middle = 8 if zero is None else int(zero[row, column // group])
            out[row, column] = (nibble - middle) * float(scale[row, column // group])
    return out


def scaled_by_entry(parameters: dict[str, Tensor], rows: int, columns: int) -> Tensor:
    values, scale = parameters["weight"].double(), parameters["weight_scale"].reshape(-1)
    across = -(-values.shape[1] // columns)
    return torch.stack(
        [
            torch.stack([v * scale[(r // rows) * across + c // columns].double() for c, v in enumerate(row)])
            for r, row in enumerate(values)
        ]
    )


FORMATS: dict[str, tuple[Any, Any, float]] = {
    "int8_channel": (quantize.quantize_int8_channel, lambda p: scaled_by_entry(p, 1, 10**9), 0.01),
    "int8_group": (lambda w: quantize.quantize_int8_group(w, 16), lambda p: scaled_by_entry(p, 1, 16), 0.008),
    "int4_group": (lambda w: quantize.quantize_int4_group(w, 16), lambda p: int4_by_entry(p, 16), 0.13),
    "int4_zero_point": (
        lambda w: quantize.quantize_int4_group(w, 16, symmetric=False),
        lambda p: int4_by_entry(p, 16),
        0.12,
    ),
    "fp8_tensor": (quantize.quantize_fp8_tensor, lambda p: scaled_by_entry(p, 10**9, 10**9), 0.04),
    "fp8_channel": (quantize.quantize_fp8_channel, lambda p: scaled_by_entry(p, 1, 10**9), 0.04),
    "fp8_block": (quantize.quantize_fp8_block, lambda p: scaled_by_entry(p, 128, 128), 0.04),
}


Prepared = quantized_weight.ScaledWeight | quantized_weight.GroupedWeight | quantized_weight.PackedWeight


def prepare(name: str, parameters: dict[str, Tensor]) -> Prepared:
    prepared: Prepared
    prepared = getattr(quantized_weight, "prepare_" + {"int4_zero_point": "int4_group"}.get(name, name))(parameters)
    return prepared


def random_weight(name: str) -> Tensor:
    torch.manual_seed(0)
    shape = (130, 144) if name == "fp8_block" else (9, 48)
    weight = torch.randn(shape)
    weight[3] = 0
    weight[5] *= 20
    return weight


@pytest.mark.parametrize("name", FORMATS)
def test_dequantizes_entry_by_entry(name: str) -> None:
    quantizer, by_entry, loss = FORMATS[name]
    weight = random_weight(name)
    parameters = quantizer(weight)
    out = prepare(name, parameters).dequantize(torch.float32)
    torch.testing.assert_close(out.double(), by_entry(parameters), rtol=1e-6, atol=1e-9)
    assert 0 < error(out, weight) < loss
    assert bool((out[3] == 0).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_gemm_with_a_quantized_weight(name: str, bias: bool, tokens: int, dtype: torch.dtype) -> None:
    weight = random_weight(name)
    prepared = prepare(name, FORMATS[name][0](weight))
    x = torch.randn(tokens, weight.shape[1]).to(dtype)
    offset = torch.randn(weight.shape[0]).to(dtype) if bias else None
    out = linear_dequantized(x, prepared, offset)
    expected = x.double() @ prepared.dequantize(torch.float64).T
    if offset is not None:
        expected = expected + offset.double()
    assert out.dtype == dtype
    assert out.shape == (tokens, weight.shape[0])
    assert tokens == 0 or error(out, expected) < DTYPES[dtype]


def test_int4_covers_its_whole_range() -> None:
    """A group that holds one sign only must reach its extreme values and hit zero exactly."""
    weight = torch.linspace(1.0, 16.0, 32).repeat(2, 1)
    weight[1] *= -1
    weight[:, 0] = 0
    parameters = quantize.quantize_int4_group(weight, 32, symmetric=False)
    out = quantized_weight.prepare_int4_group(parameters).dequantize(torch.float32)
    assert bool((out[:, 0] == 0).all())
    assert out.abs().amax(dim=1).tolist() == pytest.approx([16.0, 16.0], rel=1e-6)


@pytest.mark.parametrize("name", ["int8_channel", "fp8_channel"])
def test_scales_of_channels_may_be_flat(name: str) -> None:
    parameters = FORMATS[name][0](random_weight(name))
    flat = {**parameters, "weight_scale": parameters["weight_scale"].flatten()}
    assert torch.equal(
        prepare(name, flat).dequantize(torch.float32), prepare(name, parameters).dequantize(torch.float32)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_gemm(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(5, 33).to(dtype), torch.randn(17, 33).to(dtype), torch.randn(17).to(dtype)
    expected = x.double() @ weight.double().T
    assert error(linear(x, prepare_plain({"weight": weight}), None), expected) < DTYPES[dtype]
    assert error(linear(x, weight, bias), expected + bias.double()) < DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiled_gemm(dtype: torch.dtype) -> None:
    weight, bias = torch.randn(17, 33).to(dtype), torch.randn(17).to(dtype)
    prepared = prepare_invariant({"weight": weight})
    for rows in (1, 2, 5, 64, 70):
        x = torch.randn(rows, 33).to(dtype)
        expected = x.double() @ weight.double().T
        assert error(linear_invariant(x, prepared, None), expected) < DTYPES[dtype]
        assert error(linear_invariant(x, prepared, bias), expected + bias.double()) < 2 * DTYPES[dtype]


def test_rows_are_batch_invariant() -> None:
    x, weight = torch.randn(33, 257), torch.randn(65, 257)
    together = linear(x, weight, None)
    for row in range(33):
        assert error(linear(x[row : row + 1], weight, None)[0], together[row]) < 1e-6


def test_zero_points_of_int8_groups_need_not_be_whole() -> None:
    values, scale = torch.tensor([[3, -4, 100, 7]], dtype=torch.int8), torch.tensor([[0.5, 2.0]])
    zero = torch.tensor([[1.5, -0.25]])
    parameters = {"weight": values, "weight_scale": scale, "weight_zero_point": zero}
    found = quantized_weight.prepare_int8_group(parameters).dequantize(torch.float32)
    assert found.tolist() == [[0.75, -2.75, 200.5, 14.5]]
