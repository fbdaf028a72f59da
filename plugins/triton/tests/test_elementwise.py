"""Norms, activations and embedding against the reference, at sizes that fill no tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.reference import activations as reference_activations
from llmk.reference import norms as reference_norms
from llmk.reference.embedding import make_scaled_embedding
from llmk_triton.batch import embedding
from llmk_triton.common import activations, layer_norms, norms

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PLAIN = {"rms_norm": reference_norms.rms_norm}
ADD_NORM = reference_norms.make_add_rms_norm(PLAIN)
ADDING: dict[str, tuple[Callable[..., Any], int]] = {
    "add_rms_norm": (ADD_NORM, 1),
    "add_rms_norm_fp32_residual": (reference_norms.make_add_rms_norm_fp32_residual(PLAIN), 1),
    "sandwich_norm": (reference_norms.make_sandwich_norm(PLAIN | {"add_rms_norm": ADD_NORM}), 2),
}


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(actual: Tensor, expected: Tensor) -> None:
    """16-bit results are equal but for the last bit, where float32 sums in another order round to another side."""
    assert actual.dtype == expected.dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=1e-6)
    if actual.dtype != torch.float32 and actual.numel():
        assert (actual != expected).float().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1024), (3, 100), (40, 7), (2, 3, 128), (2, 2500), (0, 64)], ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(dtype, *shape), random(dtype, shape[-1], seed=1)
    for offset in ({}, {"norm_offset": 1.0}):
        same(norms.rms_norm(x, weight, 1e-5, **offset), reference_norms.rms_norm(x, weight, 1e-5, **offset))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ADDING)
@pytest.mark.parametrize("offset", [{}, {"norm_offset": 1.0}], ids=str)
def test_norms_around_a_residual(op: str, dtype: torch.dtype, offset: dict[str, float]) -> None:
    reference, count = ADDING[op]
    x, residual = random(dtype, 5, 100), random(dtype, 5, 100, seed=1)
    weights = [random(dtype, 100, seed=2 + i) for i in range(count)]
    if op == "add_rms_norm_fp32_residual":
        residual, offset = random(torch.float32, 5, 100, seed=1), {}
    before = x.clone(), residual.clone()
    normed, total = getattr(norms, op)(x, residual, *weights, 1e-6, **offset)
    expected_normed, expected_total = reference(x, residual, *weights, 1e-6, **offset)
    same(normed, expected_normed)
    same(total, expected_total)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_with_a_factor(dtype: torch.dtype) -> None:
    x, residual, weight = random(dtype, 5, 100), random(dtype, 5, 100, seed=1), random(dtype, 100, seed=2)
    normed, total = norms.add_rms_norm(x, residual, weight, 1e-6, residual_multiplier=0.22)
    expected = ADD_NORM(x, residual, weight, 1e-6, residual_multiplier=0.22)
    same(normed, expected[0])
    assert torch.equal(total, expected[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [{}, {"norm_offset": 1.0}], ids=str)
def test_a_norm_before_the_sum(dtype: torch.dtype, offset: dict[str, float]) -> None:
    x, residual, weight = random(dtype, 2, 3, 100), random(dtype, 2, 3, 100, seed=1), random(dtype, 100, seed=2)
    before = x.clone(), residual.clone()
    same(
        norms.rms_norm_add(x, residual, weight, 1e-6, **offset),
        reference_norms.make_rms_norm_add(PLAIN)(x, residual, weight, 1e-6, **offset),
    )
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_a_rows_norm_does_not_depend_on_its_neighbours() -> None:
    x, weight = random(torch.bfloat16, 33, 96), random(torch.bfloat16, 96)
    alone = torch.cat([norms.rms_norm(row[None], weight, 1e-6) for row in x[:5]])
    assert torch.equal(norms.rms_norm(x, weight, 1e-6)[:5], alone)


def test_strided_rows_are_normed() -> None:
    x, weight = random(torch.float32, 4, 3, 64)[:, :2], random(torch.float32, 64)
    same(norms.rms_norm(x, weight, 1e-6), reference_norms.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize("shape", [(3, 200), (2, 2, 2 * 1100)], ids=str)
def test_activations(shape: tuple[int, ...], op: str, dtype: torch.dtype) -> None:
    """Far below zero GELU is a difference of numbers near 1, whose last bits depend on how they were computed."""
    x = random(dtype, *shape)
    actual, expected = getattr(activations, op)(x), getattr(reference_activations, op)(x)
    torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{"activation_alpha": 0.7}, {"activation_alpha": 1.702, "activation_limit": 0.5, "up_offset": 1.0}],
    ids=str,
)
def test_activations_with_parameters(options: dict[str, Any], dtype: torch.dtype) -> None:
    for op in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
        x = random(dtype, 3, 200)
        actual, expected = (getattr(each, op)(x, **options) for each in (activations, reference_activations))
        torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", activations.KINDS)
def test_activations_without_a_gate(kind: str, dtype: torch.dtype) -> None:
    for shape in ((3, 100), (2, 2, 1100), (0, 8)):
        x = random(dtype, *shape)
        actual, expected = activations.activation(x, kind), reference_activations.activate(x, kind)
        torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "gates"), [(200, 200), (1100, 1), (1100, 1100)])
def test_sigmoid_gate(size: int, gates: int, dtype: torch.dtype) -> None:
    x, gate = random(dtype, 3, size), random(dtype, 3, 2 * gates, seed=1)[:, gates:]
    same(activations.sigmoid_gate(x, gate), reference_activations.sigmoid_gate(x, gate))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [24, 2100])
def test_embedding(size: int, dtype: torch.dtype) -> None:
    table, ids = random(dtype, 11, size), torch.tensor([3, 0, 10, 3])
    assert torch.equal(embedding.embedding(ids, table), table[ids])
    assert embedding.embedding(ids[:0], table).shape == (0, size)
    scaled = make_scaled_embedding({"embedding": lambda ids, weight: weight[ids]})
    assert torch.equal(embedding.scaled_embedding(ids, table, 12.34), scaled(ids, table, 12.34))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1024), (3, 100), (40, 7), (2, 3, 128), (2, 2500), (0, 64)], ids=str)
@pytest.mark.parametrize("options", [{}, {"norm_offset": 1.0}], ids=str)
def test_layer_norm(shape: tuple[int, ...], options: dict[str, float], dtype: torch.dtype) -> None:
    x = random(dtype, *shape) + 3
    weight, bias = random(dtype, shape[-1], seed=1), random(dtype, shape[-1], seed=2)
    for given in ((weight, bias), (weight, None), (None, None)):
        expected = reference_norms.layer_norm_invariant(x, *given, 1e-5, **options)
        torch.testing.assert_close(
            layer_norms.layer_norm(x, *given, 1e-5, **options), expected, rtol=2 * torch.finfo(dtype).eps, atol=2e-6
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"norm_offset": 1.0, "residual_multiplier": 0.22}], ids=str)
def test_layer_norm_after_a_sum(options: dict[str, float], dtype: torch.dtype) -> None:
    x, residual = random(dtype, 5, 100), random(dtype, 5, 100, seed=1)
    weight, bias = random(dtype, 100, seed=2), random(dtype, 100, seed=3)
    before = x.clone(), residual.clone()
    normed, total = layer_norms.add_layer_norm(x, residual, weight, bias, 1e-6, **options)
    reference = reference_norms.make_add_layer_norm({"layer_norm": reference_norms.layer_norm_invariant})
    expected = reference(x, residual, weight, bias, 1e-6, **options)
    torch.testing.assert_close(normed, expected[0], rtol=2 * torch.finfo(dtype).eps, atol=2e-6)
    assert torch.equal(total, expected[1])
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_xielu(dtype: torch.dtype) -> None:
    """Also where ``expm1`` of a small number decides, and above the positive ``eps`` that some checkpoints have."""
    x = torch.cat((random(dtype, 3, 200) * 4, random(dtype, 3, 200) * 1e-3), dim=1)
    for eps in (-1e-6, 1e-3):
        parameters = [torch.tensor([value]) for value in (0.7, -0.3, 0.5, eps)]
        actual, expected = activations.xielu(x, *parameters), reference_activations.xielu(x, *parameters)
        torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softcap(dtype: torch.dtype) -> None:
    x = random(dtype, 3, 1500) * 40
    actual, expected = activations.softcap(x, 30.0), reference_activations.softcap(x, 30.0)
    torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
