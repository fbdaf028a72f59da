"""What is derived from a tree: sites, tensors, and the ops that span blocks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from llmk.api import MoEFacts, PluginError
from llmk.tree import (
    MLP,
    Block,
    Branch,
    CausalLM,
    Embedding,
    GatedMLP,
    Head,
    Heads,
    LatentAttention,
    LatentShape,
    Linear,
    MoE,
    Norm,
    Parallel,
    Program,
    Residual,
    Rope,
    SelfAttention,
    Sites,
    Sublayer,
    lower,
    nameless,
    weight_map,
)

HIDDEN, INNER, VOCAB = 24, 40, 50
ROPE = Rope.with_settings(6, 64, {"rope_type": "default", "rope_theta": 1e4})


def norm(at: str, **own: Any) -> Norm:
    return Norm(at=at, size=HIDDEN, eps=1e-5, **own)


def layer(at: str, *, kv: int = 2, inner: int = INNER, **attend: Any) -> tuple[Residual, ...]:
    attention = SelfAttention.of(f"{at}.self_attn", HIDDEN, Heads(4, kv, 6), ROPE, bias=True, **attend)
    mlp = GatedMLP.of(f"{at}.mlp", HIDDEN, inner)
    return Residual(norm=norm(f"{at}.pre"), block=attention), Residual(norm=norm(f"{at}.then"), block=mlp)


def model(*layers: tuple[Residual, ...], **own: Any) -> CausalLM:
    return CausalLM(
        embed=Embedding(at="embed", vocab_size=VOCAB, size=HIDDEN),
        layers=layers or (layer("0"), layer("1")),
        norm=norm("end"),
        head=Head(at="head", vocab_size=VOCAB, size=HIDDEN, tied=True),
        max_model_len=64,
        **own,
    )


def sites(program: Program, kind: str) -> dict[str, Any]:
    return {site.site: site for site in Sites(program.leaves(), "float32").of(kind)}


def test_layers_with_equal_facts_share_sites() -> None:
    program = lower(model())
    assert {name: site.count for name, site in sites(program, "linear").items()} == {
        "qkv": 2, "out": 2, "gate_up": 2, "down": 2, "lm_head": 1,
    }  # fmt: skip
    assert sites(program, "attention")["attention"].num_layers == 2


def test_sites_of_other_sizes_are_numbered_and_so_are_their_ops() -> None:
    program = lower(model(layer("0"), layer("1", kv=1, inner=8), layer("2")))
    linear, attention, ops = (sites(program, kind) for kind in ("linear", "attention", "ops"))
    assert {name: site.count for name, site in linear.items() if name not in ("out", "lm_head")} == {
        "qkv": 2, "qkv.2": 1, "gate_up": 2, "gate_up.2": 1, "down": 2, "down.2": 1,
    }  # fmt: skip
    assert linear["qkv.2"].units == ((4, 6), (1, 6), (1, 6))
    assert attention["attention.2"].num_kv_heads == 1
    assert (ops["attention.whole.2"].attention, ops["norm_qkv.2"].linear) == ("attention.2", "qkv.2")
    assert (ops["norm_gate_up_silu.2"].linear, ops["norm_gate_up_silu.2"].facts["intermediate_size"]) == (
        "gate_up.2",
        8,
    )


def test_windows_have_a_site_of_their_own() -> None:
    found = sites(lower(model(layer("0", window=8), layer("1"))), "attention")
    assert {name: site.sliding_window for name, site in found.items()} == {"sliding_attention": 8, "attention": None}


def test_every_tensor_is_named_once_with_its_shape() -> None:
    program = lower(model(layer("0", qk_norm=1e-6)))
    assert weight_map(program) == {
        "embed.weight": (VOCAB, HIDDEN),
        "0.pre.weight": (HIDDEN,),
        "0.self_attn.q_proj.weight": (24, HIDDEN),
        "0.self_attn.k_proj.weight": (12, HIDDEN),
        "0.self_attn.v_proj.weight": (12, HIDDEN),
        "0.self_attn.q_proj.bias": (24,),
        "0.self_attn.k_proj.bias": (12,),
        "0.self_attn.v_proj.bias": (12,),
        "0.self_attn.q_norm.weight": (6,),
        "0.self_attn.k_norm.weight": (6,),
        "0.self_attn.o_proj.weight": (HIDDEN, 24),
        "0.self_attn.o_proj.bias": (HIDDEN,),
        "0.then.weight": (HIDDEN,),
        "0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "0.mlp.up_proj.weight": (INNER, HIDDEN),
        "0.mlp.down_proj.weight": (HIDDEN, INNER),
        "end.weight": (HIDDEN,),
    }
    assert program.num_parameters == sum(
        rows * (columns[0] if columns else 1) for rows, *columns in weight_map(program).values()
    )


def test_experts_are_counted_without_being_listed() -> None:
    facts = MoEFacts(site="moe", num_experts=5, top_k=2, hidden_size=HIDDEN, intermediate_size=7, bias=True)
    program = lower(model((Residual(norm=norm("0.pre"), block=MoE.of("0.mlp", facts)),)))
    shapes = weight_map(program)
    assert shapes["0.mlp.experts.4.up_proj.weight"] == (7, HIDDEN)
    assert shapes["0.mlp.experts.0.down_proj.bias"] == (HIDDEN,)
    assert len([name for name in shapes if ".experts." in name]) == 5 * 6
    assert len(program.tensors) == 4 + 6
    experts = 5 * (3 * 7 * HIDDEN + 2 * 7 + HIDDEN)
    assert program.num_parameters == experts + (5 + VOCAB + 2) * HIDDEN


def test_a_tensor_that_is_named_twice_is_refused() -> None:
    first, second = layer("0")
    twice = replace(second, norm=norm("0.pre"))
    with pytest.raises(PluginError, match=r"'0\.pre\.weight' twice: as Norm at '0\.pre' and Norm at '0\.pre'"):
        _ = lower(model((first, twice))).num_parameters


def test_a_block_that_is_used_twice_owns_its_tensors_once() -> None:
    shared = GatedMLP.of("shared", HIDDEN, INNER)
    layers = [(Residual(norm=norm(f"{index}.norm"), block=shared),) for index in range(3)]
    program = lower(model(*layers))
    assert program.num_parameters == 3 * HIDDEN * INNER + (3 + 1 + VOCAB) * HIDDEN
    assert sites(program, "linear")["gate_up"].count == 1, "it is built once"


def test_ops_span_a_norm_and_the_layer_after_it_unless_that_is_ruled_out() -> None:
    fused, apart = (set(sites(lower(model(), fuse=fuse), "ops")) for fuse in (True, False))
    assert fused - apart == {"norm_qkv", "norm_gate_up_silu"}
    assert apart - fused == {"gate_up_silu"}


def test_joints_sum_over_ranks_so_that_the_platform_can_add_and_norm_at_once() -> None:
    shape = LatentShape(
        hidden_size=HIDDEN, num_heads=2, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=6,
        v_head_dim=4, scale=1.0,
    )  # fmt: skip
    latent = LatentAttention.of("1.self_attn", shape, ROPE, 1e-6)
    moe = MoE.of("1.mlp", MoEFacts(site="moe", num_experts=4, top_k=2, hidden_size=HIDDEN, intermediate_size=INNER))
    blocks = Residual(norm=norm("1.pre"), block=latent), Residual(norm=norm("1.then"), block=moe)
    alone, cut = (lower(model(layer("0"), blocks), ranks=ranks) for ranks in (1, 2))
    joints = [part.joint for parts in cut.layers for part in parts if isinstance(part, Sublayer)]
    assert [joint.sums for joint in (*joints, cut.end)] == [False, True, True, True, True]
    assert [joint.entry for joint in joints] == [None] * 4
    kept = {leaf.role: leaf.partial for leaf in cut.leaves() if isinstance(leaf, Linear) and leaf.cut == "row"}
    assert kept == {"out": True, "down": True}
    assert weight_map(cut) == weight_map(alone)
    assert sites(cut, "linear") == sites(alone, "linear")
    assert not any(leaf.partial for leaf in alone.leaves() if isinstance(leaf, Linear | MoE))


def test_a_block_that_is_used_twice_leaves_the_same_sum() -> None:
    shared = GatedMLP.of("shared", HIDDEN, INNER)
    program = lower(model(*((Residual(norm=norm(f"{index}.norm"), block=shared),) for index in range(2))), ranks=2)
    assert program.num_parameters == 3 * HIDDEN * INNER + (2 + 1 + VOCAB) * HIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Block):
    """A family's own block, which sums by itself."""


def test_blocks_that_sum_by_themselves_are_not_summed_again() -> None:
    own = Residual(norm=norm("0.pre"), block=Own(at="0"))
    program = lower(model((own, layer("0")[1])), ranks=2)
    assert [part.joint.sums for part in program.layers[0] if isinstance(part, Sublayer)] == [False, False]
    assert program.end.sums


@pytest.mark.parametrize(
    ("own", "ops"),
    [
        ({"residual_dtype": "float32"}, {"rms_norm", "add_rms_norm_fp32_residual"}),
        ({}, {"rms_norm", "add_rms_norm", "norm_qkv", "norm_gate_up_silu"}),
    ],
)
def test_the_residual_decides_how_norms_add_it(own: dict[str, Any], ops: set[str]) -> None:
    found = set(sites(lower(model(**own)), "ops"))
    assert found - {"embedding", "attention.whole", "gate_up_silu"} == ops


def test_norms_on_both_sides_are_one_op_with_the_sum() -> None:
    def sandwich(at: str) -> tuple[Residual, ...]:
        return tuple(
            Residual(norm=replace(each.norm, offset=1.0), block=each.block, post=norm(f"{at}.{number}", offset=1.0))
            for number, each in enumerate(layer(at))
            if each.norm
        )

    program = lower(replace(model(sandwich("0"), sandwich("1")), norm=norm("end", offset=1.0)))
    norms = {name: dict(site.facts) for name, site in sites(program, "ops").items() if "norm" in name}
    assert norms == {op: {"size": HIDDEN, "norm_offset": 1.0} for op in ("rms_norm", "sandwich_norm")}
    joints = [part.joint for part in program.layers[1]]  # type: ignore[union-attr]
    assert [joint.post.at for joint in joints if joint.post] == ["0.1", "1.0"]
    assert program.end.post is not None


def test_centered_norms_are_ops_of_their_own() -> None:
    def centered(at: str) -> tuple[Residual, ...]:
        return tuple(
            replace(each, norm=replace(each.norm, centered=True, bias=True)) for each in layer(at) if each.norm
        )

    program = lower(replace(model(centered("0"), centered("1")), norm=norm("end", centered=True, weighted=False)))
    ops = sites(program, "ops")
    assert set(ops) - {"embedding", "attention.whole", "gate_up_silu"} == {"layer_norm", "add_layer_norm"}
    names = {name for name in weight_map(program) if "pre" in name or "end" in name}
    assert names == {"0.pre.weight", "0.pre.bias", "1.pre.weight", "1.pre.bias"}


@pytest.mark.parametrize(
    ("own", "post", "problem"),
    [
        ({"centered": True}, None, ""),
        ({"centered": True}, norm("post"), "'0.pre' is centered, next to a norm after a block"),
        ({"bias": True}, None, "'0.pre' is a root-mean-square norm without weight, or with a bias"),
        ({"weighted": False}, None, "'0.pre' is a root-mean-square norm without weight, or with a bias"),
    ],
    ids=["centered", "post", "bias", "weight"],
)
def test_norms_that_no_op_computes_are_refused(own: dict[str, Any], post: Norm | None, problem: str) -> None:
    first, then = layer("0")
    found = model((replace(then, post=post), replace(first, norm=norm("0.pre", **own))))
    if not problem:
        assert lower(found).num_parameters
        return
    with pytest.raises(PluginError, match=problem):
        lower(found)


def test_blocks_side_by_side_have_norms_of_their_own_and_one_sum() -> None:
    attention, mlp = (each.block for each in layer("0"))
    branches = Branch(norm=norm("a", role="branch_norm", centered=True), block=attention), Branch(block=mlp)
    program = lower(model((Residual(norm=None, block=Parallel(branches=branches)),)), ranks=2)
    assert {"branch_norm", "attention.whole", "gate_up_silu"} <= set(sites(program, "ops"))
    assert program.end.sums
    assert [leaf.partial for leaf in program.leaves() if isinstance(leaf, Linear) and leaf.cut == "row"] == [True] * 2
    scan = Parallel.of("0", attention, Block())
    assert not lower(model((Residual(norm=norm("n"), block=scan),)), ranks=2).end.sums


def test_layers_that_differ_in_names_alone_are_alike() -> None:
    assert nameless(layer("0")) == nameless(layer("1"))
    assert nameless(layer("0")) != nameless(layer("1", window=8))
    facts = MoEFacts(site="moe", num_experts=5, top_k=2, hidden_size=HIDDEN, intermediate_size=7, selection_bias=True)
    assert nameless(MoE.of("0.mlp", facts)) == nameless(MoE.of("1.mlp", facts))
    tied, own = (Head(at="lm_head", vocab_size=9, size=HIDDEN, tied=tied) for tied in (True, False))
    assert nameless(tied) != nameless(own)


def test_trees_need_no_torch() -> None:
    code = "import sys, llmk.tree; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def blocks(*found: Any, **own: Any) -> Program:
    """A model with one layer of these blocks."""
    layer = tuple(Residual(norm=norm(f"norm.{i}"), block=block, **own) for i, block in enumerate(found))
    return lower(model(layer))


def test_variants_of_attention_are_facts_where_they_are_not_neutral() -> None:
    turned = replace(ROPE, neighbours=True)
    late = SelfAttention.of("attn", HIDDEN, Heads(4, 2, 6), turned, qk_norm=1e-6, norm_after_rope=True)
    (whole,) = (site.facts for site in sites(blocks(late), "ops").values() if site.op == "qk_norm_rope_attention")
    assert (whole["rotary_neighbours"], whole["norm_after_rope"]) == (True, True)
    own: dict[str, Any] = {"qk_norm": 1e-6, "whole_qk_norm": True, "value_dim": 5, "sinks": True}
    attention = SelfAttention.of("attn", HIDDEN, Heads(4, 2, 6), None, **own)
    program = blocks(attention)
    ops, linear = sites(program, "ops"), sites(program, "linear")
    assert dict(ops["attention.whole"].facts) == {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "rotary_dim": 0, "qk_norm": False,
        "no_rope": True, "attention_sinks": True, "value_dim": 5,
    }  # fmt: skip
    assert (ops["q_norm"].facts["size"], ops["k_norm"].facts["size"]) == (24, 12)
    assert (linear["qkv"].units, linear["out"].in_features) == (((4, 6), (2, 6), (2, 5)), 20)
    (facts,) = sites(program, "attention").values()
    assert (facts.value_dim, facts.sinks) == (5, True)
    shapes = weight_map(program)
    assert (shapes["attn.q_norm.weight"], shapes["attn.k_norm.weight"], shapes["attn.sinks"]) == ((24,), (12,), (4,))


def test_norms_of_each_head_are_ops_of_their_own() -> None:
    own: dict[str, Any] = {"qk_norm": 1e-6, "own_qk_norms": True, "norm_names": ("q_norm", "k_norm.{}")}
    program = blocks(SelfAttention.of("attn", HIDDEN, Heads(4, 2, 6), ROPE, **own))
    ops, shapes = sites(program, "ops"), weight_map(program)
    assert [(ops[site].op, dict(ops[site].facts)) for site in ("q_norm", "k_norm")] == [("layer_norm", {"size": 6})] * 2
    assert not ops["attention.whole"].facts["qk_norm"]
    norms = {name: shape for name, shape in shapes.items() if "attn." in name and "norm" in name}
    assert norms == {"attn.q_norm.weight": (4, 6), "attn.k_norm.0.weight": (6,), "attn.k_norm.1.weight": (6,)}


@pytest.mark.parametrize("own", [{}, {"qk_norm": 1e-6}, {"qk_norm": 1e-6, "whole_qk_norm": True}], ids=str)
def test_an_offset_is_a_fact_of_the_op_with_the_norms(own: dict[str, Any]) -> None:
    ops = sites(blocks(SelfAttention.of("attn", HIDDEN, Heads(4, 2, 6), ROPE, norm_offset=1.0, **own)), "ops")
    found = {name for name, site in ops.items() if site.facts.get("norm_offset") == 1.0}
    assert found == ({"q_norm", "k_norm"} if "whole_qk_norm" in own else {"attention.whole"} if own else set())


@pytest.mark.parametrize("per_head", [True, False])
def test_an_output_gate_needs_the_normed_input(per_head: bool) -> None:
    attention = SelfAttention.of("attn", HIDDEN, Heads(4, 2, 6), ROPE).gated_by("attn.g", HIDDEN, per_head=per_head)
    program = blocks(attention)
    ops = sites(program, "ops")
    assert "norm_qkv" not in ops
    sizes = (6, 1) if per_head else (24, 24)
    assert tuple(ops["attention_gate"].facts.values()) == sizes
    assert weight_map(program)["attn.g.weight"] == (4 if per_head else 24, HIDDEN)


def test_experts_of_other_layouts_and_with_other_biases() -> None:
    facts = MoEFacts(
        site="moe", num_experts=5, top_k=2, hidden_size=HIDDEN, intermediate_size=7,
        bias=True, router_bias=True, selection_bias=True,
    )  # fmt: skip
    block = MoE.of("mlp", facts, interleaved=True, router="router", selection_bias="router.bias_of_choice")
    assert {name: shape for name, shape in weight_map(blocks(block)).items() if name.startswith("mlp.")} == {
        "mlp.router.weight": (5, HIDDEN),
        "mlp.router.bias": (5,),
        "mlp.router.bias_of_choice": (5,),
        "mlp.experts.gate_up_proj": (5, HIDDEN, 14),
        "mlp.experts.down_proj": (5, 7, HIDDEN),
        "mlp.experts.gate_up_proj_bias": (5, 14),
        "mlp.experts.down_proj_bias": (5, HIDDEN),
    }


def test_factors_and_activations_reach_the_op_that_spans_the_norm() -> None:
    mlp = GatedMLP.of("mlp", HIDDEN, INNER, activation_limit=7.0, up_offset=1.0)
    ops = sites(blocks(MLP.of("first", HIDDEN, INNER, "relu2"), mlp, scale=0.25), "ops")
    assert dict(ops["norm_gate_up_silu"].facts) == {
        "size": HIDDEN, "intermediate_size": INNER, "residual_multiplier": 0.25, "activation_limit": 7.0,
        "up_offset": 1.0,
    }  # fmt: skip
    assert dict(ops["add_rms_norm"].facts) == {"size": HIDDEN, "residual_multiplier": 0.25}
    assert dict(ops["activate"].facts) == {"intermediate_size": INNER, "activation": "relu2"}


def test_a_block_without_a_norm_before_it() -> None:
    mlp = GatedMLP.of("mlp", HIDDEN, INNER)
    program = lower(model((Residual(norm=None, block=mlp, post=norm("post")),), (layer("1")[1],)))
    ops = sites(program, "ops")
    assert {"gate_up_silu", "sandwich_norm"} <= set(ops)
    assert program.layers[0][0].joint.first  # type: ignore[union-attr]


def test_a_scale_after_a_norm_is_refused() -> None:
    with pytest.raises(PluginError, match=r"Norm at 'post' norms the output of a block that has the scale 0\.5"):
        blocks(GatedMLP.of("mlp", HIDDEN, INNER), post=norm("post"), scale=0.5)


def test_positions_of_several_axes_are_a_fact() -> None:
    rope = replace(ROPE, sections=(1, 2), interleaved=True)
    attention = SelfAttention.of("0.self_attn", HIDDEN, Heads(4, 2, 6), rope)
    program = lower(model((Residual(norm=norm("0.pre"), block=attention),)))
    found = sites(program, "ops")["attention.whole"]
    assert found.facts["rotary_sections"] == (1, 2)
    assert "rotary_sections" not in sites(lower(model()), "ops")["attention.whole"].facts


def test_latent_attention_has_positions_of_one_axis() -> None:
    shape = LatentShape(
        hidden_size=HIDDEN, num_heads=2, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=6,
        v_head_dim=4, scale=1.0,
    )  # fmt: skip
    attention = LatentAttention.of("0.self_attn", shape, replace(ROPE, sections=(1, 2)), 1e-6)
    program = lower(model((Residual(norm=norm("0.pre"), block=attention),)))
    with pytest.raises(PluginError, match="several axes"):
        sites(program, "ops")


def test_norms_on_both_sides_of_the_sum_are_of_one_kind() -> None:
    with pytest.raises(PluginError, match=r"Norm at 'post' and Norm at 'end', between two blocks, differ in eps"):
        blocks(GatedMLP.of("mlp", HIDDEN, INNER), post=norm("post", offset=1.0))
