"""The library's GEMM against the reference, also at unusual shapes, and the platform that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from llmk.api import Host
from llmk.reference.linear import linear as reference
from llmk.reference.linear import linear_invariant
from llmk.reference.tiles import cancelling
from llmk_cpu.linear import linear_prepacked, prepack, prepack_invariant
from llmk_cpu.platform import CPUPlatform
from llmk_cpu.probe import probe
from llmk_testing.invariance import check_rows

FACTS = probe(Host()).facts
assert FACTS is not None
DTYPES = [torch.float32] + ([torch.bfloat16] if FACTS.features & {"avx512_bf16", "amx_bf16"} else [])
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-3}
"""Relative to the norm of an exact result: rounding of sums in another order, and of a bf16 result."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(64, 96), (1, 7), (7, 1), (33, 130), (1000, 61), (257, 515)], ids=str)
def test_equals_the_reference(shape: tuple[int, int], bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    out_features, in_features = shape
    weight = torch.randn(out_features, in_features).to(dtype)
    offset = torch.randn(out_features).to(dtype) if bias else None
    packed, tiled = prepack({"weight": weight}), prepack_invariant({"weight": weight})
    for rows in (1, 2, 3, 17, 129):
        x = torch.randn(rows, in_features).to(dtype)
        exact = reference(x.double(), weight.double(), None if offset is None else offset.double())
        for found in (linear_prepacked(x, packed, offset), linear_invariant(x, tiled, offset)):
            assert (found.dtype, found.shape) == (dtype, (rows, out_features))
            assert (found.double() - exact).norm() <= TOLERANCE[dtype] * exact.norm() + 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_tiled_rows_are_batch_invariant(threads: int, dtype: torch.dtype) -> None:
    """The rows of torch's own GEMM are not batch-invariant."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in ((64, 96), (33, 130), (300, 2048), (257, 515), (1, 7)):
            rows, weight = cancelling(150, shape, dtype)
            tiled = prepack_invariant({"weight": weight})
            check_rows(lambda x, tiled=tiled: linear_invariant(x, tiled, None), rows)
        rows, weight = cancelling(150, (300, 2048), dtype)
        packed = prepack({"weight": weight})
        with pytest.raises(AssertionError, match="differ in a batch of"):
            check_rows(lambda x: linear_prepacked(x, packed, None), rows)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accepts_strided_rows(dtype: torch.dtype) -> None:
    weight = torch.randn(48, 32).to(dtype)
    x = torch.randn(5, 64).to(dtype)[:, ::2]
    torch.testing.assert_close(linear_prepacked(x, prepack({"weight": weight}), None), reference(x, weight, None))


def test_the_stored_weight_may_be_freed() -> None:
    """The packed weight is a copy: what loading held is free once it is made."""
    weight = torch.randn(64, 64)
    packed = prepack({"weight": weight})
    before = linear_prepacked(torch.ones(1, 64), packed, None)
    weight.zero_()
    assert torch.equal(linear_prepacked(torch.ones(1, 64), packed, None), before)


def test_a_torch_without_onednn_is_a_failed_import() -> None:
    """The loader turns it into a reason, and the next candidate serves."""
    code = "import torch; torch.backends.mkldnn.is_available = lambda: False; import llmk_cpu.linear"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: this build of torch has no oneDNN" in done.stderr


def test_platform_facets() -> None:
    platform = CPUPlatform(FACTS)
    assert platform.graphs is not None
    assert CPUPlatform(replace(FACTS, features=FACTS.features - {"graphs"})).graphs is None
    assert platform.device.torch_device(3) == torch.device("cpu")
    assert 0 < platform.memory.available() <= platform.memory.total()
    assert platform.collectives.backend == "gloo"
    platform.device.synchronize()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [1, 0])
def test_threads_are_set_as_configured_or_advised(asked: int) -> None:
    code = (
        "import torch; from llmk.api import Host; from llmk_cpu.machine import cores;"
        "from llmk_cpu.platform import CPUDevice;"
        f"CPUDevice().setup(0, {asked}); assert torch.get_num_threads() == ({asked} or cores(Host()).advised_threads)"
    )
    environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
