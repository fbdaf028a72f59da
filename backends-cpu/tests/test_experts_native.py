"""Native mixtures of experts with weights in groups, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmk.reference.moe import fused_moe_dequantized, prepare_moe_int4_group, prepare_moe_int8_group
from llmk.reference.quantize import quantize_int4_group, quantize_int8_group
from llmk_cpu.graphs import CPUGraphs
from llmk_cpu.native.experts import Experts, fused_moe, prepare_int4_group_experts, prepare_int8_group_experts
from llmk_testing.tolerance import Right, check

EXPERTS, HIDDEN, INNER, TOP_K = 5, 96, 64, 2
KINDS = {
    4: (quantize_int4_group, prepare_int4_group_experts, prepare_moe_int4_group),
    8: (quantize_int8_group, prepare_int8_group_experts, prepare_moe_int8_group),
}


def made(bits: int, group: int, zeros: bool, *, gated: bool = True) -> dict[str, Tensor]:
    """The parameters of both GEMMs, quantized at random, with biases."""
    quantize, parameters = KINDS[bits][0], dict[str, Tensor]()
    for name, outputs, inputs in (("gate_up", (1 + gated) * INNER, HIDDEN), ("down", HIDDEN, INNER)):
        found = quantize(torch.randn(EXPERTS * outputs, inputs) / inputs**0.5, group)
        if zeros:
            found["weight_zero_point"] = torch.randn(EXPERTS * outputs, inputs // group) * 2 + 3
        for key, value in found.items():
            parameters[name + key.removeprefix("weight")] = value.unflatten(0, (EXPERTS, outputs))
        parameters[f"{name}_bias"] = torch.randn(EXPERTS, outputs).bfloat16()
    return parameters


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (8, 16)])
@pytest.mark.parametrize("rows", [1, 7, 150])
@pytest.mark.parametrize("gated", [True, False])
def test_groups_equal_the_reference(rows: int, bits: int, group: int, zeros: bool, gated: bool) -> None:
    parameters, (_, prepare, meaning) = made(bits, group, zeros, gated=gated), KINDS[bits]
    own = {} if gated else {"gated": False, "activation": "relu2"}
    weights, options = prepare(parameters), {"top_k": TOP_K, "renormalize": True, **own}
    assert isinstance(weights, Experts)
    x, logits = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(rows, EXPERTS).bfloat16()
    expected = fused_moe_dequantized(x, logits, meaning(parameters), **options)
    check(fused_moe(x, logits, weights, **options), Right(expected.double(), torch.bfloat16), f"{rows} rows")


def test_groups_that_the_kernel_does_not_take_are_replayed_for_other_tokens() -> None:
    """A recorded step can't depend on which experts were chosen when it was recorded."""
    parameters = made(4, 16, False)
    weights, meaning = prepare_int4_group_experts(parameters), prepare_moe_int4_group(parameters)
    assert not isinstance(weights, Experts)
    x, logits = torch.empty(3, HIDDEN).bfloat16(), torch.empty(3, EXPERTS).bfloat16()
    options = {"top_k": TOP_K, "renormalize": True}
    replay = CPUGraphs().capture(lambda: fused_moe(x, logits, weights, **options))
    for number in range(3):
        x.normal_(), logits.normal_()
        expected = fused_moe_dequantized(x, logits, meaning, **options)
        check(replay(), Right(expected.double(), torch.bfloat16), f"replay {number}")
