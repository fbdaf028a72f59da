"""Gated activations against float64 formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig
from transformers.activations import ACT2FN, XIELUActivation
from transformers.models.gemma2.modeling_gemma2 import Gemma2TextScaledWordEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from llmk.reference.activations import (
    ACTIVATIONS,
    INVARIANT_ACTIVATIONS,
    PLAIN_ACTIVATIONS,
    activate,
    make_gate_up_gelu,
    make_gate_up_gelu_tanh,
    make_gate_up_silu,
    sigmoid_gate,
    silu_and_mul,
    softcap,
    xielu,
)
from llmk.reference.embedding import embedding, make_scaled_embedding
from llmk.reference.linear import linear, linear_dequantized
from llmk.reference.quantize import quantize_int8_channel
from llmk.reference.quantized_weight import prepare_int8_channel

BOUND = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": tanh_gelu,
}


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (3, 14), (2, 5, 34)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_activations(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (2 * torch.randn(shape)).to(dtype)
    half = shape[-1] // 2
    expected = FORMULAS[name](x[..., :half].double()) * x[..., half:].double()
    for kernels in (ACTIVATIONS, INVARIANT_ACTIVATIONS):
        out = kernels[name](x)
        assert out.dtype == dtype
        assert float((out.double() - expected).norm() / expected.norm()) < BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", PLAIN_ACTIVATIONS)
def test_activations_without_a_gate(name: str, dtype: torch.dtype) -> None:
    x = (2 * torch.randn(3, 17)).to(dtype)
    theirs = ACT2FN[{"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)]
    out = activate(x, name)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), theirs(x.double()), rtol=BOUND[dtype], atol=1e-7)


def test_invariant_activations_of_extreme_values() -> None:
    gate = torch.tensor([-1e30, -200.0, -1e-30, 0.0, 1e-30, 200.0, 1e30])
    for name, kernel in INVARIANT_ACTIVATIONS.items():
        torch.testing.assert_close(
            kernel(torch.cat((gate, gate.sign()))), ACTIVATIONS[name](torch.cat((gate, gate.sign())))
        )


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("alpha", "limit", "offset"), [(1.702, 0.8, 1.0), (1.0, 1.5, 0.0), (0.5, None, -2.0)])
def test_parameters_of_gated_activations(
    name: str, alpha: float, limit: float | None, offset: float, dtype: torch.dtype
) -> None:
    x = (2 * torch.randn(5, 34)).to(dtype)
    gate, up = x.double().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    expected = FORMULAS[name](alpha * gate) / alpha * (up + offset)
    for kernels in (ACTIVATIONS, INVARIANT_ACTIVATIONS):
        out = kernels[name](x, activation_alpha=alpha, activation_limit=limit, up_offset=offset)
        assert out.dtype == dtype
        assert float((out.double() - expected).norm() / expected.norm()) < BOUND[dtype]


def test_the_clamped_activation_of_gpt_oss() -> None:
    theirs = GptOssExperts(GptOssConfig(hidden_size=4, intermediate_size=17, num_local_experts=2))
    gate, up = 6 * torch.randn(9, 17), 6 * torch.randn(9, 17)
    expected = theirs._apply_gate(torch.stack((gate, up), dim=-1).flatten(1))
    options = {"activation_alpha": theirs.alpha, "activation_limit": theirs.limit, "up_offset": 1.0}
    torch.testing.assert_close(silu_and_mul(torch.cat((gate, up), dim=-1), **options), expected)


@pytest.mark.parametrize("name", FORMULAS)
def test_gate_up_is_the_linear_layer_and_then_the_activation(name: str) -> None:
    x, weight, bias = torch.randn(3, 10), torch.randn(16, 10), torch.randn(16)
    make = {"silu": make_gate_up_silu, "gelu": make_gate_up_gelu, "gelu_tanh": make_gate_up_gelu_tanh}[name]
    op = make({"linear": linear, **{f"{each}_and_mul": kernel for each, kernel in ACTIVATIONS.items()}})
    both = x.double() @ weight.double().T + bias.double()
    expected = FORMULAS[name](both[:, :8]) * both[:, 8:]
    torch.testing.assert_close(op(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-5)
    clamped = FORMULAS[name](both[:, :8].clamp(max=0.5)) * both[:, 8:].clamp(-0.5, 0.5)
    found = op(x, weight, bias, activation_limit=0.5)
    torch.testing.assert_close(found.double(), clamped, rtol=1e-5, atol=1e-5)


def test_gate_up_silu_passes_the_prepared_weight_to_its_linear_kernel() -> None:
    x, weight = torch.randn(3, 10), torch.randn(16, 10)
    prepared = prepare_int8_channel(quantize_int8_channel(weight))
    op = make_gate_up_silu({"linear": linear_dequantized, "silu_and_mul": silu_and_mul})
    expected = silu_and_mul(x @ prepared.dequantize(torch.float32).T)
    torch.testing.assert_close(op(x, prepared, None), expected)


def test_embedding() -> None:
    weight = torch.randn(11, 6).to(torch.bfloat16)
    ids = torch.tensor([10, 0, 3, 3])
    assert torch.equal(embedding(ids, weight), torch.stack([weight[i] for i in ids.tolist()]))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_scaled_embedding_is_that_of_transformers(dtype: torch.dtype) -> None:
    """The scale is rounded to the table's dtype before it multiplies: 55.4256 is 55.5 in bfloat16."""
    weight, ids = torch.randn(11, 6).to(dtype), torch.tensor([10, 0, 3, 3])
    theirs = Gemma2TextScaledWordEmbedding(11, 6, 0, embed_scale=3072**0.5).to(dtype)
    theirs.weight.data = weight
    op = make_scaled_embedding({"embedding": embedding})
    assert torch.equal(op(ids, weight, 3072**0.5), theirs(ids))


def test_softcap_bounds_and_leaves_small_values_alone() -> None:
    out = softcap(torch.tensor([-1e6, -0.01, 0.0, 30.0, 1e6]), 30.0)
    torch.testing.assert_close(out, torch.tensor([-30.0, -0.01, 0.0, 30 * math.tanh(1), 30.0]))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("gate_size", [1, 24])
def test_sigmoid_gate(gate_size: int, dtype: torch.dtype) -> None:
    x, gate = torch.randn(5, 24).to(dtype), torch.randn(5, gate_size).to(dtype)
    out = sigmoid_gate(x, gate)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), x.double() * torch.sigmoid(gate.double()), rtol=BOUND[dtype], atol=0)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_xielu(dtype: torch.dtype) -> None:
    theirs = XIELUActivation(alpha_p_init=0.7, alpha_n_init=1.1, beta=0.4, eps=-0.3, dtype=torch.float32)
    x = (2 * torch.randn(3, 17)).to(dtype)
    parameters = [each.detach().reshape(1) for each in (theirs.alpha_p, theirs.alpha_n, theirs.beta, theirs.eps)]
    out, expected = xielu(x, *parameters), theirs(x.float()).detach()
    assert out.dtype == dtype
    assert float((out.float() - expected).norm() / expected.norm()) < BOUND[dtype]
