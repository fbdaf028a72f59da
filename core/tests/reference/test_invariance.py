"""Kernels that declare ``deterministic``: each row is the same bit for bit in any batch, with one thread and with two.

The plain ones are not, by the same checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.reference import activations, moe, norms, quantize, quantized_weight
from llmk.reference.linear import linear, linear_dequantized, linear_invariant, prepare_invariant
from llmk.reference.rope.rotation import rope
from llmk.reference.sampling import sample as sampling
from llmk.reference.tiles import cancelling
from llmk_testing.invariance import check_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(64, 64), (96, 130), (1, 515), (33, 7), (512, 256), (300, 1000)]
pytestmark = pytest.mark.parametrize("threads", [1, 2], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear(shape: tuple[int, int], dtype: torch.dtype, threads: int) -> None:
    rows, weight = cancelling(300, shape, dtype)
    prepared = prepare_invariant({"weight": weight})
    check_rows(lambda x: linear_invariant(x, prepared, None), rows)
    bias = torch.randn(shape[0]).to(dtype)
    check_rows(lambda x: linear_invariant(x, prepared, bias), torch.randn(70, shape[1]).to(dtype))
    if dtype == torch.float32:
        with pytest.raises(AssertionError, match="differ in a batch of"):
            check_rows(lambda x: linear(x, weight, None), rows)


def test_an_unaligned_weight(threads: int) -> None:
    """As one expert's among others may lie."""
    rows, weight = cancelling(80, (26, 20))
    memory = torch.cat((torch.zeros(1), weight.flatten()))
    prepared = prepare_invariant({"weight": memory[1:].view(26, 20)})
    check_rows(lambda x: linear_invariant(x, prepared, None), rows)


@pytest.mark.parametrize("name", ["int8_channel", "int8_group", "int4_group", "fp8_block"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_linear_dequantized(name: str, dtype: torch.dtype, threads: int) -> None:
    parameters = getattr(quantize, f"quantize_{name}")(torch.randn(130, 128))
    weight = getattr(quantized_weight, f"prepare_{name}")(parameters)
    check_rows(lambda x: linear_dequantized(x, weight, None), torch.randn(100, 128).to(dtype))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize(("experts", "top_k", "hidden", "inner"), [(4, 2, 64, 112), (8, 3, 64, 48), (5, 1, 20, 13)])
def test_mixture_of_experts(
    experts: int, top_k: int, hidden: int, inner: int, dtype: torch.dtype, scoring: str, threads: int
) -> None:
    weights = {
        "gate_up": torch.randn(experts, 2 * inner, hidden).to(dtype) / 4,
        "down": torch.randn(experts, hidden, inner).to(dtype) / 4,
        "gate_up_bias": torch.randn(experts, 2 * inner).to(dtype),
        "down_bias": torch.randn(experts, hidden).to(dtype),
    }
    tiled = moe.prepare_invariant(weights)

    def run(kernel: Callable[..., Tensor], weights: Any) -> Callable[[Tensor], Tensor]:
        options: dict[str, Any] = {"top_k": top_k, "renormalize": True, "scoring": scoring}
        return lambda both: kernel(both[:, :hidden], both[:, hidden:], weights, **options)

    rows = torch.randn(150, hidden + experts).to(dtype)
    check_rows(run(moe.fused_moe_invariant, tiled), rows)
    if dtype == torch.float32:
        with pytest.raises(AssertionError, match="differ in a batch of"):
            check_rows(run(moe.fused_moe, weights), rows)


@pytest.mark.parametrize("inner", [112, 7, 515])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", activations.ACTIVATIONS)
def test_activations(name: str, dtype: torch.dtype, inner: int, threads: int) -> None:
    rows = 3 * torch.randn(301, 2 * inner).to(dtype)
    check_rows(activations.INVARIANT_ACTIVATIONS[name], rows, trials=20)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch has no vectors here")
def test_plain_activations(threads: int) -> None:
    """Two threads meet within a row, where torch's own code starts again with whole vectors."""
    if threads == 2:
        torch.manual_seed(0)
        with pytest.raises(AssertionError, match="differ in a batch of"):
            check_rows(activations.silu_and_mul, 3 * torch.randn(301, 2 * 227))


@pytest.mark.parametrize("function", [torch.exp, torch.erf, torch.tanh, torch.log])
def test_what_kernels_are_made_of(function: Callable[[Tensor], Tensor], threads: int) -> None:
    """One function of a number wherever that stands, in as many numbers as two threads share, too."""
    check_rows(function, 4 * torch.rand(90_001, 1), trials=30)


def norm(kernel: Callable[[Tensor, Tensor, float], Tensor], size: int) -> Callable[[Tensor], Tensor]:
    return lambda x: kernel(x, torch.linspace(0.5, 2, size, dtype=x.dtype), 1e-6)


def rotate(x: Tensor) -> Tensor:
    angles = torch.linspace(0, 3, 40)[:, None] * torch.ones(16)
    heads = x.view(-1, 4, 24)
    positions = heads[:, 0, 0].abs().mul(10).long().clamp(max=39)
    return torch.cat(rope(heads[:, :3], heads[:, 3:], positions, angles), dim=1)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("size", [96, 1000, 4097])
def test_norms(size: int, dtype: torch.dtype, threads: int) -> None:
    rows = torch.randn(200, size).to(dtype)
    check_rows(norm(norms.rms_norm, size), rows, trials=20)
    check_rows(norm(partial(norms.rms_norm, norm_offset=1.0), size), rows, trials=20)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_rotation_and_soft_cap(dtype: torch.dtype, threads: int) -> None:
    rows = 4 * torch.randn(200, 96).to(dtype)
    check_rows(rotate, rows)
    check_rows(lambda x: activations.softcap(x, 5.0), rows)


@pytest.mark.parametrize("vocab", [50, 3001, 40_000])
def test_sampling(vocab: int, threads: int) -> None:
    """Rows have different sampling parameters, or none; a row of many tokens is worth sharing among threads."""
    count = 24
    logits = 4 * torch.randn(count, vocab)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3]).repeat(6)
    top_k, top_p = torch.tensor([0, 5, 0]).repeat(8), torch.tensor([1.0, 0.9, 0.3, 0.99]).repeat_interleave(6)
    min_p, seeds = torch.tensor([0.0, 0.0, 0.05]).repeat_interleave(8), torch.arange(count)

    def sample(rows: Tensor) -> Tensor:
        options = (t[rows] for t in (temperature, top_k, top_p, min_p, seeds, seeds))
        return sampling.sample(logits[rows], *options)[:, None]

    def score(rows: Tensor) -> Tensor:
        scores = sampling.logprobs(logits[rows], rows % vocab, 5)
        return torch.cat([part.view(len(rows), -1).double() for part in scores], dim=1)

    def mask(rows: Tensor) -> Tensor:
        return sampling.mask_top_k_top_p_min_p(logits[rows], top_k[rows], top_p[rows], min_p[rows])

    for function in (sample, score, mask):
        check_rows(function, torch.arange(count), trials=25)
