"""The GEMMs against the reference, which uses the dequantized weights in float32."""

from __future__ import annotations

import pytest
import torch

from llmk.api import LinearQuery, PlatformFacts, match
from llmk.kernel.loader import load_object
from llmk.reference.linear import linear_dequantized
from llmk.reference.quantize import quantize_int8_channel
from llmk.reference.quantized_weight import prepare_int8_channel
from llmk_cpu.probe import KNOWN
from llmk_int8.specs import llmk_linear_kernels

KERNELS = {spec.id: spec for spec in llmk_linear_kernels()}
BY_LABEL = {facts.label: facts for facts in KNOWN}
AVX2, AVX512 = BY_LABEL["cpu/x86_64-avx2"], BY_LABEL["cpu/x86_64-avx512"]
TOLERANCE = {"bfloat16": 6e-3, "float32": 1e-6}
"""Relative error: in bfloat16 of the inputs' scales and of two roundings of the result."""


def query(platform: PlatformFacts = AVX512, dtype: str = "bfloat16", **fields: object) -> LinearQuery:
    given = {"in_features": 64, "out_features": 40, "weight_format": "int8_channel", **fields}
    return LinearQuery(platform=platform, site="up", dtype=dtype, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", KERNELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 64, 40), (3, 96, 1), (16, 1024, 37), (17, 32, 256)])
@pytest.mark.parametrize("bias", [True, False])
def test_gemms_equal_the_references(id: str, dtype: str, rows: int, inner: int, outer: int, bias: bool) -> None:
    spec, torch_dtype = KERNELS[id], getattr(torch, dtype)
    if not match(spec, query(dtype=dtype, in_features=inner, out_features=outer)):
        assert (id, dtype) == ("int8.linear_packed", "float32")
        return
    torch.manual_seed(0)
    weight = load_object(spec.prepare)(quantize_int8_channel(torch.randn(outer, inner)))
    x = torch.randn(rows, inner).to(torch_dtype)
    added = torch.randn(outer).to(torch_dtype) if bias else None
    kept = x.clone(), None if added is None else added.clone()
    found = load_object(spec.implementation)(x, weight, added)
    exact = linear_dequantized(x.float(), weight, None if added is None else added.float())
    assert found.dtype == torch_dtype
    assert (found.float() - exact).norm() / exact.norm() < TOLERANCE[dtype]
    assert torch.equal(x, kept[0])
    assert added is None or torch.equal(added, kept[1])


@pytest.mark.parametrize(
    ("id", "asked", "code"),
    [
        ("int8.linear_packed", query(in_features=48), "in_features"),
        ("int8.linear_packed", query(dtype="float32"), "dtype"),
        ("int8.linear_packed", query(platform=AVX2), "arch"),
        ("int8.linear_packed", query(weight_format="plain"), "weight_format"),
        ("int8.linear_widened", query(weight_format="fp8_channel"), "weight_format"),
        ("int8.linear_widened", query(dtype="float16"), "dtype"),
        ("int8.linear_widened", query(deterministic=True), "not_deterministic"),
    ],
)
def test_unsupported_queries_are_refused_with_reasons(id: str, asked: LinearQuery, code: str) -> None:
    assert [reason.code for reason in match(KERNELS[id], asked).reasons] == [code]


def test_every_site_has_a_kernel_for_many_rows_that_reads_the_same_weights() -> None:
    packed, widened = KERNELS.values()
    assert (packed.prepare, packed.layout) == (widened.prepare, widened.layout)
    assert match(widened, query(platform=AVX2, in_features=48))
    assert [band.start for band in widened.bands] == [1]


def test_errors_are_at_most_half_a_scale_of_each_output() -> None:
    weight = torch.randn(50, 70) * torch.logspace(-6, 3, 50)[:, None]
    weight[7] = 0
    stored = quantize_int8_channel(weight)
    found = prepare_int8_channel(stored).dequantize(torch.float32)
    assert stored["weight"].dtype == torch.int8
    assert stored["weight"].abs().max() == 127
    assert ((found - weight).abs() <= weight.abs().amax(dim=1, keepdim=True) / 254 * 1.0001).all()
    assert not found[7].any()
