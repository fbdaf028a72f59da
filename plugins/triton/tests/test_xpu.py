"""What is chosen for Intel GPUs, and what the kernels took when they were compiled for them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from triton.backends.compiler import GPUTarget

from llmk_triton.common import targets
from llmk_triton.gemm.problem import GemmProblem
from llmk_triton.gemm.small_m import Skinny, choose
from llmk_triton.moe.tiles import choose_tiles

RESULTS = json.loads(Path(__file__).with_name("spirv.json").read_text())
SLM = {"pvc": 128 << 10, "bmg": 128 << 10, "dg2": 64 << 10}
REGISTERS = 128 * 64
"""Bytes that a sub-group of 16 threads has, where kernels don't halve the number of threads for more."""
DOTS = {"decode_kernel", "prefill_kernel", "gate_up_kernel", "down_kernel", "skinny_kernel"}


@pytest.mark.parametrize(
    ("version", "arch"),
    [
        ("12.60.7", "pvc"),
        ("12.55.8", "dg2"),
        ("12.56.5", "dg2"),
        ("12.70.4", "mtl"),
        ("12.71.4", "mtl"),
        ("12.74.4", "arl"),
        ("20.1.4", "bmg"),
        ("20.2.0", "bmg"),
        ("20.4.4", "lnl"),
        ("30.0.4", "ptl"),
        ("35.1.0", "xe"),
        ("", "xe"),
    ],
)
def test_architectures_have_names(version: str, arch: str) -> None:
    assert targets.xpu_architecture({"version": version}) == arch


def test_a_target_can_be_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own has a dictionary, which can't."""
    given = GPUTarget("xpu", {"version": "20.1.4"}, 32)
    knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=False))
    monkeypatch.setattr(targets.triton, "knobs", knobs)
    monkeypatch.setattr(targets, "driver", SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: given)))
    targets.current_target.cache_clear()
    try:
        assert {targets.current_target()} == {GPUTarget("xpu", "bmg", 32)}
    finally:
        targets.current_target.cache_clear()


@pytest.mark.parametrize("arch", SLM)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_accumulators_take_half_the_registers_at_most(arch: str, head_dim: int) -> None:
    target = GPUTarget("xpu", arch, 32)
    size = 1 << (head_dim - 1).bit_length()
    few, many = targets.decode_configs(target, size, 2, 4)
    for tile in (targets.prefill_tile(target, size, 2, 4), few.tile, many.tile):
        assert 4 * tile.rows * size / tile.warps <= REGISTERS / 2
        assert tile.rows * size * 2 + 2 * tile.stages * tile.keys * size * 2 <= SLM[arch]


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 64, 100, 128])
@pytest.mark.parametrize("arch", SLM)
def test_gemms_and_experts_have_configurations_that_fit(arch: str, rows: int) -> None:
    target = GPUTarget("xpu", arch, 32)
    config = choose(GemmProblem("linear", torch.bfloat16, rows, 4096, 6144), target, 64)
    if isinstance(config, Skinny):
        assert not config.tma
        assert not config.swap
        block_m = max(16, 1 << (rows - 1).bit_length())
        assert 4 * block_m * config.block_n / config.warps <= REGISTERS / 2
        assert config.stages * (block_m + config.block_n) * config.block_k * 2 <= SLM[arch]
    tiles = choose_tiles(target, "bfloat16", rows, 8, 2, 4096, 1024)
    for matrices, tile in ((2, tiles.gate_up), (1, tiles.down)):
        assert 4 * tiles.rows * tile.features * matrices / tile.warps <= REGISTERS / 2
        assert tile.stages * (matrices * tile.features + tiles.rows) * tile.columns * 2 <= SLM[arch]


@pytest.mark.parametrize("arch", RESULTS)
def test_what_was_compiled_fits_and_uses_matrix_units(arch: str) -> None:
    kernels = RESULTS[arch]["kernels"]
    assert all(most["shared"] <= SLM[arch] for most in kernels.values())
    assert {"decode_kernel", "prefill_kernel"} <= kernels.keys()
    with_units = {name for name in kernels.keys() & DOTS if kernels[name]["matrix"]}
    # Sub-groups of 8, with which this chip's matrix units run, are not what Triton 3.3 compiles for.
    assert with_units == (set() if arch == "dg2" else kernels.keys() & DOTS)
