"""Norms against ``transformers`` and float64."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.granite.modeling_granite import GraniteRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P

from llmk.reference.linear import linear
from llmk.reference.norm_linear import make_add_rms_norm_linear, make_add_rms_norm_router
from llmk.reference.norms import (
    AddNormOptions,
    layer_norm,
    layer_norm_invariant,
    make_add_layer_norm,
    make_add_rms_norm,
    make_add_rms_norm_fp32_residual,
    make_rms_norm_add,
    make_sandwich_norm,
    rms_norm,
)

MULTIPLIER = 0.22
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BOUND = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def exact(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return weight.double() * wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 7), (5, 64), (3, 2, 33), (1, 1024), (0, 16)])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = (3 * torch.randn(shape)).to(dtype), torch.randn(shape[-1]).to(dtype)
    out = rms_norm(x, weight, 1e-5)
    theirs = LlamaRMSNorm(shape[-1], 1e-5).to(dtype)
    theirs.weight.data = weight
    assert out.dtype == dtype
    assert torch.equal(out, theirs(x))
    assert float((out.double() - exact(x, weight, 1e-5)).norm()) <= BOUND[dtype] * float(exact(x, weight, 1e-5).norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_with_an_offset(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 96).to(dtype), torch.randn(96).to(dtype)
    theirs = GemmaRMSNorm(96, 1e-6).to(dtype)
    theirs.weight.data = weight
    assert torch.equal(rms_norm(x, weight, 1e-6, norm_offset=1.0), theirs(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, False)])
def test_layer_norm(weighted: bool, biased: bool, dtype: torch.dtype) -> None:
    x = (3 * torch.randn(5, 33) + 2).to(dtype)
    weight, bias = (torch.randn(33).to(dtype) if given else None for given in (weighted, biased))
    wide = [None if each is None else each.double() for each in (weight, bias)]
    expected = torch.nn.functional.layer_norm(x.double(), (33,), *wide, 1e-5)
    for out in (layer_norm(x, weight, bias, 1e-5), layer_norm_invariant(x, weight, bias, 1e-5)):
        assert out.dtype == dtype
        assert float((out.double() - expected).norm() / expected.norm()) <= BOUND[dtype]


def test_a_layer_norm_with_an_offset_after_a_sum() -> None:
    x, residual, weight, bias = torch.randn(4, 40), torch.randn(4, 40), torch.randn(40), torch.randn(40)
    theirs = NemotronLayerNorm1P(40, 1e-5)
    theirs.weight.data, theirs.bias.data = weight, bias
    options: AddNormOptions = {"norm_offset": 1.0, "residual_multiplier": 0.5}
    kept = x.clone(), residual.clone()
    normed, total = make_add_layer_norm({"layer_norm": layer_norm})(x, residual, weight, bias, 1e-5, **options)
    assert torch.equal(total, 0.5 * x + residual)
    torch.testing.assert_close(normed, theirs(total))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


def test_large_values_do_not_overflow_in_half_precision() -> None:
    x = torch.full((1, 8), 60000.0, dtype=torch.float16)
    torch.testing.assert_close(rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-6), torch.ones_like(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(4, 40).to(dtype), torch.randn(4, 40).to(dtype), torch.randn(40).to(dtype)
    kept = x.clone(), residual.clone()
    normed, total = make_add_rms_norm({"rms_norm": rms_norm})(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(x + residual, weight, 1e-6))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sandwich_norm(dtype: torch.dtype) -> None:
    """As Gemma 2 has it, step by step; and without an offset."""
    x, residual = torch.randn(4, 40).to(dtype), torch.randn(4, 40).to(dtype)
    post, pre = torch.randn(40).to(dtype), torch.randn(40).to(dtype)
    kept = x.clone(), residual.clone()
    op = make_sandwich_norm({"rms_norm": rms_norm, "add_rms_norm": make_add_rms_norm({"rms_norm": rms_norm})})
    for offset in ({}, {"norm_offset": 1.0}):
        normed, total = op(x, residual, post, pre, 1e-6, **offset)
        assert torch.equal(total, residual + rms_norm(x, post, 1e-6, **offset))
        assert torch.equal(normed, rms_norm(total, pre, 1e-6, **offset))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm_fp32_residual(dtype: torch.dtype) -> None:
    """What 16-bit sums lose is kept: a thousand small terms, each below half a unit in the last place."""
    x, weight = torch.full((2, 40), 1 / 512).to(dtype), torch.randn(40).to(dtype)
    op = make_add_rms_norm_fp32_residual({"rms_norm": rms_norm})
    total = torch.ones(2, 40).to(dtype)
    for _ in range(1000):
        normed, total = op(x, total, weight, 1e-6)
    assert (normed.dtype, total.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(total, torch.full((2, 40), 1 + 1000 / 512))
    assert torch.equal(normed, rms_norm(total.to(dtype), weight, 1e-6))


def test_add_rms_norm_uses_the_norm_that_it_was_given() -> None:
    op = make_add_rms_norm({"rms_norm": lambda x, weight, eps: x * 0 + eps})
    normed, _ = op(torch.ones(2, 4), torch.ones(2, 4), torch.ones(4), 0.5)
    assert bool((normed == 0.5).all())


def test_rows_do_not_depend_on_the_batch() -> None:
    x, weight = torch.randn(37, 100), torch.randn(100)
    together = rms_norm(x, weight, 1e-6)
    for row in range(37):
        assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-6)[0], together[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_norm_after_a_block(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 33).to(dtype), torch.randn(5, 33).to(dtype), torch.randn(33).to(dtype)
    theirs = LlamaRMSNorm(33, 1e-5).to(dtype)
    theirs.weight.data = weight
    assert torch.equal(make_rms_norm_add({"rms_norm": rms_norm})(x, residual, weight, 1e-5), residual + theirs(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_added_may_have_a_factor(dtype: torch.dtype) -> None:
    """As in Granite, also where the norm is one op with the linear layer or router after it."""
    x, residual, weight = torch.randn(5, 33).to(dtype), torch.randn(5, 33).to(dtype), torch.randn(33).to(dtype)
    projection = torch.randn(7, 33).to(dtype)
    theirs = GraniteRMSNorm(33, 1e-5).to(dtype)
    theirs.weight.data = weight
    total = residual + x * MULTIPLIER
    normed = theirs(total)
    add_norm = make_add_rms_norm({"rms_norm": rms_norm})
    parts = {"rms_norm": rms_norm, "add_rms_norm": add_norm, "linear": linear}
    expected = linear(normed, projection, None)
    both, router = make_add_rms_norm_linear(parts), make_add_rms_norm_router(parts)
    asked = (x, residual, weight, 1e-5)
    found = add_norm(*asked, residual_multiplier=MULTIPLIER)
    fused = both(*asked, projection, None, residual_multiplier=MULTIPLIER)
    routed = router(*asked, projection, None, residual_multiplier=MULTIPLIER)
    for actual, right in ((found, (normed, total)), (fused, (expected, total)), (routed, (expected, normed, total))):
        assert all(torch.equal(one, other) for one, other in zip(actual, right, strict=True))
    first, kept = both(x, None, weight, 1e-5, projection, None, residual_multiplier=MULTIPLIER)
    assert torch.equal(kept, x)
    assert torch.equal(first, linear(theirs(x), projection, None))
