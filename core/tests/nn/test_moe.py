"""Experts find their place however a checkpoint stores them, and shared ones see what came in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import Build, build, builder, choice, piece
from torch import Tensor
from transformers import DeepseekV3Config, GptOssConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

from llmk import tree
from llmk.api import CheckpointError, MoEFacts
from llmk.nn import Experts, Parameter, StepContext
from llmk.nn.blocks.moe import MoE
from llmk.nn.parallel import Parallel
from llmk.reference.moe import fused_moe

FACTS = MoEFacts(site="moe", num_experts=3, top_k=2, hidden_size=6, intermediate_size=4, renormalize=False, scaling=1.5)
CONTEXT = StepContext(torch.zeros(1), [], [])
SHARED_LINEARS = [choice("linear", f"shared_{name}", piece("linear")) for name in ("gate_up", "down")]
OPTIONS = {"top_k": 2, "renormalize": False, "scaling": 1.5}


def made(kernel: str = "moe", prepare: str = "", parallel: Parallel | None = None) -> Build:
    choices = choice("moe", "moe", piece(kernel, prepare=prepare)), choice("linear", "moe.router", piece("linear"))
    return build(*choices, parallel=parallel)


def moe_block(made: Build, at: str, facts: MoEFacts | None = None, **own: Any) -> MoE:
    """The block of a spec."""
    spec = tree.MoE.of(at, facts or FACTS, **own)
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


def test_the_kernel_gets_the_facts_of_the_experts() -> None:
    values, x, logits = weights(), torch.randn(5, 6), torch.randn(5, 3) * 4
    here = made()
    experts = Experts(here, "mlp.experts", replace(FACTS, facts={"router_softcap": 1.5}), ("w1", "w3", "w2"))
    load(experts.parameters, one_by_one(values, "mlp.experts", ("w1", "w3", "w2")))
    experts.finish()
    capped = fused_moe(x, 1.5 * torch.tanh(logits / 1.5), values, **OPTIONS)
    torch.testing.assert_close(experts(x, logits), capped)
    assert (capped - fused_moe(x, logits, values, **OPTIONS)).abs().max() > 0.01


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


def filled(block: torch.nn.Module) -> dict[str, Tensor]:
    """The block's state with random values."""
    state = block.state_dict()
    for tensor in state.values():
        tensor.normal_(std=0.5)
    return state


def loaded(block: MoE, state: dict[str, Tensor]) -> MoE:
    load((*block.experts.parameters, *block.router.parameters), state)
    block.experts.finish()
    block.router.finish()
    return block


@pytest.mark.parametrize("kernel", [("moe", ""), ("moe_transposed", "transpose_experts")])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_block_of_gpt_oss_in_its_layout(kernel: tuple[str, str], ranks: int) -> None:
    theirs = GptOssMLP(GptOssConfig(hidden_size=10, intermediate_size=6, num_local_experts=5, num_experts_per_tok=2))
    state = filled(theirs)
    if kernel[1]:  # whose kernel takes no biases
        for name in ("experts.gate_up_proj_bias", "experts.down_proj_bias"):
            state[name].zero_()
    facts = MoEFacts(
        site="moe",
        num_experts=5,
        top_k=2,
        hidden_size=10,
        intermediate_size=6,
        bias=not kernel[1],
        router_bias=True,
        activation_alpha=theirs.experts.alpha,
        activation_limit=theirs.experts.limit,
        up_offset=1.0,
    )
    stored = {f"mlp.{name}": tensor for name, tensor in state.items() if facts.bias or "proj_bias" not in name}
    x, out = 3 * torch.randn(7, 10), torch.zeros(7, 10)
    for rank in range(ranks):
        here = made(*kernel, parallel=Parallel(tensor_rank=rank, tensor_size=ranks))
        out += loaded(moe_block(here, "mlp", facts, interleaved=True, router="router"), stored)(x, CONTEXT)
    with torch.no_grad():
        expected = theirs(x[None])[0][0]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_the_block_of_deepseek_v3_with_its_selection_bias(groups: tuple[int, int]) -> None:
    num_groups, top_groups = groups
    config = DeepseekV3Config(
        hidden_size=10,
        moe_intermediate_size=6,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=3,
        n_group=num_groups,
        topk_group=top_groups,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )
    theirs = DeepseekV3MoE(config)
    state = filled(theirs)
    facts = MoEFacts(
        site="moe",
        num_experts=8,
        top_k=3,
        hidden_size=10,
        intermediate_size=6,
        scoring="sigmoid",
        scaling=2.5,
        num_groups=num_groups,
        top_groups=top_groups,
        group_scoring="top2_sum",
        selection_bias=True,
    )
    stored = {f"mlp.{name}": tensor for name, tensor in state.items() if "shared" not in name}
    ours = loaded(moe_block(made(), "mlp", facts), stored)
    x = torch.randn(20, 10)
    with torch.no_grad():
        expected, out = theirs(x[None])[0], ours(x, CONTEXT) + theirs.shared_experts(x)
        state["gate.e_score_correction_bias"].zero_()
        unbiased = theirs(x[None])[0]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(unbiased, expected)


def test_a_selection_bias_stays_in_float32() -> None:
    facts = replace(FACTS, selection_bias=True)
    half = build(choice("moe", "moe", piece("moe")), choice("linear", "moe.router", piece("linear")), dtype=torch.half)
    *_, bias = moe_block(half, "a", facts, aliases=("b",), selection_bias="gate.bias").experts.parameters
    assert bias.dtype == torch.float32
    assert bias.targets == {"a.gate.bias": (0,), "b.gate.bias": (0,)}


def test_quantized_experts_with_alternating_features_are_refused() -> None:
    query = {"in_features": 1, "out_features": 1, "weight_format": "fp8_channel"}
    here = build(choice("moe", "moe", piece("moe"), **query), choice("linear", "moe.router", piece("linear")))
    with pytest.raises(CheckpointError, match="can't be quantized, because gate and up features alternate"):
        moe_block(here, "mlp", interleaved=True)
