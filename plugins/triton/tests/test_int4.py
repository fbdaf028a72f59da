"""GEMMs with 4-bit weights against the reference, at sizes that don't fill tiles, and for every size of groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget

from llmk.reference.linear import linear_dequantized
from llmk.reference.quantize import quantize_int4_group
from llmk.reference.quantized_weight import PackedWeight, prepare_int4_group
from llmk_triton.gemm import int4, split_k
from llmk_triton.gemm.int4 import Int4Config, TiledInt4

CONFIGS = {"whole": Int4Config(64, 1, 4, 2), "split": Int4Config(64, 3, 4, 2), "wide": Int4Config(128, 2, 4, 2)}
CASES = {
    "groups of 128": (256, 128),
    "groups of 64": (192, 64),
    "groups of 32, in order": (96, 32),
    "groups of 96": (288, 96),
    "whole rows": (200, 200),
    "groups of 256": (512, 256),
}
"""Inputs, and those of a group."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(outputs: int, inputs: int, group: int, *, zero: bool = False, ordered: bool = False) -> dict[str, Tensor]:
    spread = torch.linspace(0.2, 5, outputs)[:, None] * torch.linspace(3, 0.3, inputs)
    parts = quantize_int4_group(random(outputs, inputs, seed=1) * spread + 0.3 * zero, group, symmetric=not zero)
    if ordered:
        parts["weight_order"] = torch.randperm(inputs, generator=torch.Generator().manual_seed(2))
    return parts


def close(found: Tensor, x: Tensor, parts: dict[str, Tensor], bias: Tensor | None) -> None:
    """To the GEMM of the exact weight in float32, within the dtype's rounding of the result."""
    exact = linear_dequantized(x.float(), prepare_int4_group(parts), None if bias is None else bias.float())
    assert found.dtype == x.dtype
    size = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[x.dtype]
    assert ((found.float() - exact).abs() <= size * exact.abs() + 1e-4 * exact.abs().max()).all()


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("case", CASES)
def test_every_size_of_groups(case: str, zero: bool) -> None:
    inputs, group = CASES[case]
    parts, dtype = weights(70, inputs, group, zero=zero, ordered=zero), torch.bfloat16 if zero else torch.float16
    x, bias = random(3, inputs).to(dtype), random(70, seed=3).to(dtype)
    weight = int4.prepare(parts)
    assert isinstance(weight, TiledInt4)
    assert (weight.zero is not None) == zero
    close(int4.linear(x, weight, bias), x, parts, bias)
    exact = prepare_int4_group(parts)
    assert torch.equal(weight.dequantize(torch.float32), exact.dequantize(torch.float32))
    found, wanted = int4.linear_many(x, weight, bias), linear_dequantized(x, exact, bias)
    torch.testing.assert_close(found, wanted, rtol=1.6e-2, atol=1e-2 * float(wanted.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("rows", [1, 17, 70])
def test_every_configuration(config: str, rows: int) -> None:
    parts = weights(200, 640, 128, zero=True)
    x, weight = random(rows, 640).bfloat16(), int4.prepare(parts)
    assert isinstance(weight, TiledInt4)
    before = x.clone()
    close(int4.launch(x, weight, None, CONFIGS[config]), x, parts, None)
    assert torch.equal(x, before)
    assert not split_k.counters(x.device).any(), "counters are left as they were found"


def test_rows_of_a_view_and_no_rows() -> None:
    parts = weights(64, 128, 32)
    weight, x = int4.prepare(parts), random(3, 2, 128).bfloat16()
    close(int4.linear(x[:, 1], weight, None), x[:, 1].contiguous(), parts, None)
    assert int4.linear(x[:0, 1], weight, None).shape == (0, 64)


def test_what_has_no_tiles_is_dequantized() -> None:
    """Groups of 16, and zero points that are no whole numbers."""
    small = weights(10, 64, 16)
    between = weights(10, 64, 32, zero=True)
    between["weight_zero_point"] = between["weight_zero_point"].float() + 0.5
    for parts in (small, between):
        weight, x = int4.prepare(parts), random(2, 64).bfloat16()
        assert isinstance(weight, PackedWeight)
        for run in (int4.linear, int4.linear_many):
            torch.testing.assert_close(run(x, weight, None), linear_dequantized(x, weight, None))


@pytest.mark.parametrize(
    "target", [GPUTarget("cuda", 90, 32), GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)]
)
@pytest.mark.parametrize("shape", [(4096, 4096), (28672, 4096), (4096, 14336), (1536, 896), (5120, 17408)], ids=str)
def test_programs_fill_the_device(shape: tuple[int, int], target: GPUTarget) -> None:
    for rows in (1, 64, 128):
        config = int4.choose(target, torch.bfloat16, rows, *shape, 132)
        tiles = -(-shape[0] // config.block_n) * -(-rows // 64)
        least = min(4 * 132, tiles * max(1, shape[1] // 128 // 4))
        assert tiles * config.splits >= least / 2
        assert 1 <= config.splits <= 16
