"""What runs on the device, with the CPU in its place: kernels by the conformance kit, fp8 GEMMs against float64, the
signatures that torch must have, and what memory there is."""

from __future__ import annotations

import ast
import inspect
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.xpu.graphs

import llmk_xpu.fp8
import llmk_xpu.graphs
from llmk.reference.quantize import quantize_fp8_channel, quantize_fp8_tensor
from llmk.reference.quantized_weight import prepare_fp8_channel, prepare_fp8_tensor, prepare_fp8_tensor_by_channel
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases
from llmk_xpu import fp8
from llmk_xpu.architectures import KNOWN
from llmk_xpu.memory import XPUMemory
from llmk_xpu.specs import llmk_attention_backends, llmk_linear_kernels

GIB = 1 << 30
KERNELS = {spec.id: spec for spec in (*llmk_attention_backends(), *llmk_linear_kernels())}


@cache
def bench() -> Bench:
    """The CPU, labelled as an Intel GPU."""
    opened = Bench.open("cpu")
    facts = replace(KNOWN[0], device_type="cpu", dtypes=("bfloat16", "float32"))
    return replace(opened, facts=facts)


@pytest.mark.slow
@pytest.mark.parametrize("id", KERNELS)
def test_kernels_conform(id: str) -> None:
    spec = KERNELS[id]
    results = [Result.of(case) for case in cases(spec.kind, spec, bench())]
    assert [f"{result.name}: {result.message}" for result in results if result.outcome == "failed"] == []
    assert sum(result.outcome == "passed" for result in results) >= 3


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("bias", [False, True])
def test_fp8_gemms(granularity: str, bias: bool) -> None:
    torch.manual_seed(3)
    quantize, reference = {
        "tensor": (quantize_fp8_tensor, prepare_fp8_tensor),
        "channel": (quantize_fp8_channel, prepare_fp8_channel),
    }[granularity]
    weight = torch.randn(48, 144, dtype=torch.bfloat16) * torch.rand(48, 1, dtype=torch.bfloat16)
    offset = torch.randn(48, dtype=torch.bfloat16) if bias else None
    stored = quantize(weight)
    prepared = prepare_fp8_tensor_by_channel(stored) if granularity == "tensor" else prepare_fp8_channel(stored)
    for rows in (1, 3, 17):
        x = torch.randn(rows, 144, dtype=torch.bfloat16) * torch.logspace(-3, 3, rows, dtype=torch.bfloat16)[:, None]
        values, scale = fp8.quantize_rows(x)
        exact = (values.double() * scale.double()) @ reference(stored).dequantize(torch.float64).t()
        exact = exact if offset is None else exact + offset.double()
        found = fp8.linear_rowwise(x, prepared, offset)
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).norm() < 6e-3 * exact.norm()


def test_rows_are_quantized_alone_and_within_half_a_step() -> None:
    torch.manual_seed(2)
    x = torch.randn(5, 72, dtype=torch.bfloat16)
    x[1] = 0
    x[2] *= 1e4
    before = x.clone()
    values, scale = fp8.quantize_rows(x)
    assert (values.dtype, values.shape, scale.shape, scale.dtype) == (fp8.FP8, x.shape, (5, 1), torch.float32)
    assert not values[1].float().any()
    assert not values.float().isnan().any()
    smallest = float(torch.tensor([1], dtype=torch.uint8).view(fp8.FP8).float())
    steps = torch.maximum(x.float().abs() * 2**-4, scale * smallest / 2)
    assert ((values.float() * scale - x.float()).abs() <= steps * 1.01).all()
    alone = [fp8.quantize_rows(row) for row in x.split(1)]
    assert torch.equal(torch.cat([v.view(torch.uint8) for v, _ in alone]), values.view(torch.uint8))
    assert torch.equal(torch.cat([s for _, s in alone]), scale)
    assert torch.equal(x, before), "the input is left as it was"


SCALED_MM = ("input", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum")
"""The arguments of ``torch._scaled_mm``, whose name says that they may change."""


def test_torch_s_private_function_is_called_by_keywords_that_it_has() -> None:
    (schema,) = (torch.ops.aten._scaled_mm.default._schema,)
    names = tuple(argument.name for argument in schema.arguments)
    assert names == (("self", *SCALED_MM[1:])), "torch has other arguments: look at fp8.py"
    calls = [
        node
        for node in ast.walk(ast.parse(Path(llmk_xpu.fp8.__file__).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_scaled_mm"
    ]
    assert len(calls) == 1
    assert len(calls[0].args) == 2
    assert {keyword.arg for keyword in calls[0].keywords} <= set(SCALED_MM[2:])


def test_torch_s_graphs_have_the_arguments_that_are_passed() -> None:
    """torch has them here too, for want of a device without function."""
    assert {"xpu_graph", "pool", "stream"} <= inspect.signature(torch.xpu.graphs.graph).parameters.keys()
    for name in ("XPUGraph", "graph", "graph_pool_handle", "Stream", "stream", "current_stream"):
        assert hasattr(torch.xpu, name), name
    assert "torch.xpu" in Path(llmk_xpu.graphs.__file__).read_text()


class Accelerator(SimpleNamespace):
    """``torch.accelerator`` on a device with 16 GiB, of which torch has 3 and another process 2."""

    def __init__(self, *, says_free: bool, free: int = 11 * GIB) -> None:
        def get_memory_info() -> tuple[int, int]:
            if not says_free:
                raise RuntimeError(
                    "The device (Intel(R) Graphics [0x64a0]) doesn't support querying the available free memory. You"
                    " can file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize it."
                )
            return free, 16 * GIB

        super().__init__(
            get_memory_info=get_memory_info,
            memory_reserved=lambda: 3 * GIB,
            empty_cache=lambda: None,
            current_accelerator=lambda: torch.device("xpu"),
            current_device_index=lambda: 0,
        )


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(total_memory=16 * GIB))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)


@pytest.mark.usefixtures("device")
def test_memory_that_the_driver_says(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch, "accelerator", Accelerator(says_free=True))
    memory = XPUMemory()
    assert (memory.total(), memory.available()) == (16 * GIB, 11 * GIB)
    assert not caplog.records


@pytest.mark.usefixtures("device")
def test_a_driver_that_says_that_all_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/pytorch#161381: what is free does not change with what is allocated."""
    monkeypatch.setattr(torch, "accelerator", Accelerator(says_free=True, free=16 * GIB))
    assert XPUMemory().available() == 13 * GIB


@pytest.mark.usefixtures("device")
def test_a_driver_that_says_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """pytorch/pytorch#159728: of integrated GPUs it does not."""
    monkeypatch.setattr(torch, "accelerator", Accelerator(says_free=False))
    memory = XPUMemory()
    with caplog.at_level(logging.WARNING):
        assert (memory.total(), memory.available(), memory.available()) == (16 * GIB, 13 * GIB, 13 * GIB)
    (record,) = caplog.records
    assert "torch.xpu.mem_get_info" in record.getMessage()
    assert "cache.memory_share" in record.getMessage()
