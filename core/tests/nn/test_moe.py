"""Experts find their place however a checkpoint stores them, and shared ones see what came in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import Build, build, builder, choice, piece
from torch import Tensor

from llmk import tree
from llmk.api import MoEFacts
from llmk.nn import Experts, Parameter, StepContext
from llmk.nn.blocks.moe import MoE
from llmk.reference.moe import fused_moe

FACTS = MoEFacts(site="moe", num_experts=3, top_k=2, hidden_size=6, intermediate_size=4, renormalize=False, scaling=1.5)
CONTEXT = StepContext(torch.zeros(1), [], [])
SHARED_LINEARS = [choice("linear", f"shared_{name}", piece("linear")) for name in ("gate_up", "down")]
OPTIONS = {"top_k": 2, "renormalize": False, "scaling": 1.5}


def made(kernel: str = "moe", prepare: str = "") -> Build:
    return build(choice("moe", "moe", piece(kernel, prepare=prepare)), choice("linear", "moe.router", piece("linear")))


def moe_block(made: Build, at: str, **own: Any) -> MoE:
    """The block of a spec."""
    spec = tree.MoE.of(at, FACTS, **own)
    block: MoE = builder(made, spec).block(spec)
    return block


def weights(bias: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(0)
    values = {"gate_up": torch.randn(3, 8, 6), "down": torch.randn(3, 6, 4)}
    return values | ({"gate_up_bias": torch.randn(3, 8), "down_bias": torch.randn(3, 6)} if bias else {})


def one_by_one(values: dict[str, Tensor], prefix: str, names: tuple[str, str, str]) -> dict[str, Tensor]:
    """As checkpoints have them, the last expert first."""
    stored = {}
    for expert in (2, 0, 1):
        for suffix, key in (("weight", ""), ("bias", "_bias")):
            if f"down{key}" in values:
                gate, up = values[f"gate_up{key}"][expert].chunk(2)
                tensors = zip(names, (gate, up, values[f"down{key}"][expert]), strict=True)
                stored |= {f"{prefix}.{expert}.{name}.{suffix}": tensor for name, tensor in tensors}
    return stored


def load(parameters: tuple[Parameter, ...], stored: dict[str, Tensor]) -> None:
    targets = {name: (p, shards) for p in parameters for name, shards in p.targets.items()}
    for name, tensor in stored.items():
        parameter, shards = targets[name]
        assert parameter.fits(shards, tuple(tensor.shape))
        assert not parameter.complete
        parameter.load(shards, tensor)
    assert all(parameter.complete for parameter in parameters)


@pytest.mark.parametrize("kernel", [("moe", ""), ("moe_transposed", "transpose_experts")])
@pytest.mark.parametrize("stored_as", ["one by one", "stacked", "stacked elsewhere"])
def test_experts_stored_in_every_layout(kernel: tuple[str, str], stored_as: str) -> None:
    block = moe_block(made(*kernel), "old.moe", names=("w1", "w3", "w2"), aliases=("new.mlp",))
    values, router = weights(), torch.randn(3, 6)
    prefix = "new.mlp" if stored_as == "stacked elsewhere" else "old.moe"
    stored = {f"{prefix}.experts.{name}_proj": value for name, value in values.items()}
    if stored_as == "one by one":
        stored = one_by_one(values, "old.moe.experts", ("w1", "w3", "w2"))
    load(block.experts.parameters, stored)
    load(block.router.parameters, {f"{prefix}.gate.weight": router})
    block.experts.finish()
    block.router.finish()
    x = torch.randn(5, 6)
    torch.testing.assert_close(block(x, CONTEXT), fused_moe(x, x @ router.T, values, **OPTIONS))


@pytest.mark.parametrize("stacked", [True, False])
def test_experts_may_have_biases(stacked: bool) -> None:
    experts = Experts(made(), "experts", replace(FACTS, bias=True), ("gate_proj", "up_proj", "down_proj"))
    values = weights(bias=True)
    stored = one_by_one(values, "experts", ("gate_proj", "up_proj", "down_proj"))
    if stacked:
        names = {"gate_up": "gate_up_proj", "down": "down_proj"}
        names |= {f"{key}_bias": f"{name}_bias" for key, name in names.items()}
        stored = {f"experts.{names[key]}": value for key, value in values.items()}
    load(experts.parameters, stored)
    experts.finish()
    assert all(torch.equal(experts.weights[key], value) for key, value in values.items())


def test_a_stacked_tensor_of_another_shape_does_not_fit() -> None:
    gate_up, down = Experts(made(), "experts", FACTS, ("gate_proj", "up_proj", "down_proj")).parameters
    shards = gate_up.targets["experts.gate_up_proj"]
    assert gate_up.fits(shards, (3, 8, 6))
    assert not gate_up.fits(shards, (3, 6, 8))
    assert not gate_up.fits(shards, (4, 6, 6))
    assert not gate_up.fits((0,), (3, 8, 6))
    assert not down.fits(down.targets["experts.down_proj"], (3, 4, 6))


def finished(made: Build, stored: dict[str, Tensor]) -> None:
    """Loads the tensors of all layers."""
    for layer in made.layers:
        names = {name for parameter in layer.parameters for name in parameter.targets}
        load(layer.parameters, {name: tensor for name, tensor in stored.items() if name in names})
        layer.finish()


def test_shared_experts_see_the_original_hidden_states() -> None:
    shared = tree.GatedMLP.of("mlp.shared", 6, 5, prefix="shared_", partial=True)
    places = (choice("op", "shared_gate_up_silu", piece("gated")), *SHARED_LINEARS, *made().plan.choices)
    whole = build(*places)
    block = moe_block(whole, "mlp", shared=shared)
    values, router, gate, up, down = (weights(), *(torch.randn(*size) for size in ((3, 6), (5, 6), (5, 6), (6, 5))))
    experts = {f"mlp.experts.{name}_proj": value for name, value in values.items()}
    parts = zip(("gate", "up", "down"), (gate, up, down), strict=True)
    own = {f"mlp.shared.{name}_proj.weight": value for name, value in parts}
    finished(whole, {"mlp.gate.weight": router, **experts, **own})
    x = torch.randn(5, 6)
    expected = fused_moe(x, x @ router.T, values, **OPTIONS) + ((x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(block(x, CONTEXT), expected)


@pytest.mark.parametrize("residual", [True, False])
def test_experts_use_the_routers_normed_input(residual: bool) -> None:
    rms_norm, add_rms_norm = choice("op", "rms_norm", piece("norm")), choice("op", "add_rms_norm", piece("add_norm"))
    op = piece("make_add_rms_norm_router", parts=("rms_norm", "add_rms_norm", "linear"))
    whole = choice("op", "norm_moe.router", op, op="add_rms_norm_router", parts=(rms_norm, add_rms_norm))
    router_choice = choice("linear", "moe.router", piece("linear_transposed", prepare="transpose"))
    made = build(choice("moe", "moe", piece("moe")), router_choice, whole)
    block = tree.MoE.of("mlp", FACTS)
    joint = tree.Joint(norm=tree.Norm(at="norm", size=6, eps=0.5), entry=block.entry)
    spec = tree.Sublayer(joint=joint, block=block)
    half = builder(made, spec).sublayer(spec)
    values, router, scale = weights(), torch.randn(3, 6), torch.randn(6)
    experts = {f"mlp.experts.{name}_proj": value for name, value in values.items()}
    finished(made, {"mlp.gate.weight": router, "norm.weight": scale, **experts})
    x, previous = torch.randn(5, 6), torch.randn(5, 6) if residual else None
    out, total = half(x, previous, CONTEXT)
    summed = x if previous is None else x + previous
    normed = summed * scale + 0.5
    torch.testing.assert_close(out, fused_moe(normed, normed @ router.T, values, **OPTIONS))
    assert torch.equal(total, summed)


def test_the_kernel_may_depend_on_the_number_of_tokens() -> None:
    pieces = (piece("moe", band=(0, 4)), piece("moe_zero", band=(4, 1 << 31)))
    both = build(choice("moe", "moe", *pieces))
    experts = Experts(both, "experts", FACTS, ("gate_proj", "up_proj", "down_proj"))
    load(experts.parameters, {f"experts.{name}_proj": value for name, value in weights().items()})
    experts.finish()
    x, logits = torch.randn(2, 6), torch.randn(2, 3)
    both.select(2)
    assert experts(x, logits).any()
    both.select(64)
    assert not experts(x, logits).any()
