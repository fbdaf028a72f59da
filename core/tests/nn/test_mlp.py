"""Feed-forward blocks and gates on the reference kernels, against the modules of ``transformers``."""

from __future__ import annotations

import pytest
import torch
from plans import Build, build, builder, choice, from_reference, piece
from torch import Tensor
from transformers import NemotronConfig, NemotronHConfig, Qwen2MoeConfig
from transformers.models.nemotron.modeling_nemotron import NemotronMLP
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from llmk import tree
from llmk.api import MoEFacts
from llmk.nn import LMHead, StepContext
from llmk.nn.blocks.self_attention import OutputGate
from llmk.nn.parallel import Parallel

STEP = StepContext(torch.zeros(1), [], [])


def made(parallel: Parallel | None = None) -> Build:
    linears = ("gate_up", "up", "down", "moe.router", "shared_gate_up", "shared_down", "shared_gate", "output_gate")
    linears += ("shared_up", "moe.narrow", "moe.widen")
    activation = choice("op", "gated", from_reference("activations:silu_and_mul"), op="silu_and_mul")
    gated = from_reference("activations:make_gate_up_silu", parts=("linear", "silu_and_mul"))
    return build(
        *(choice("linear", site, piece("linear")) for site in (*linears, "lm_head")),
        *(choice("op", f"{kind}gate_up_silu", gated, parts=(activation,)) for kind in ("", "shared_")),
        *(choice("op", f"{kind}activate", from_reference("activations:activate")) for kind in ("", "shared_")),
        choice("op", "shared_sigmoid_gate", from_reference("activations:sigmoid_gate")),
        choice("op", "attention_gate", from_reference("activations:sigmoid_gate")),
        choice("moe", "moe", from_reference("moe:fused_moe")),
        parallel=parallel,
    )


def filled(here: Build, state: dict[str, Tensor], prefix: str) -> None:
    for layer in here.layers:
        for parameter in layer.parameters:
            for name, shards in parameter.targets.items():
                if name.removeprefix(prefix) in state and not parameter.complete:
                    parameter.load(shards, state[name.removeprefix(prefix)])
        layer.finish()


def randomized(module: torch.nn.Module) -> dict[str, Tensor]:
    state = module.state_dict()
    for tensor in state.values():
        tensor.normal_(std=0.5)
    return state


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
@torch.no_grad()
def test_a_block_without_a_gate(ranks: int, bias: bool) -> None:
    theirs = NemotronMLP(NemotronConfig(hidden_size=10, intermediate_size=14, hidden_act="relu2", mlp_bias=bias))
    state, x, out = randomized(theirs), torch.randn(5, 10), torch.zeros(5, 10)
    for rank in range(ranks):
        here = made(Parallel(rank, ranks))
        spec = tree.MLP.of("mlp", 10, 14, "relu2", bias=bias)
        layer = builder(here, spec).block(spec)
        filled(here, state, "mlp.")
        out += layer(x, STEP)
    torch.testing.assert_close(out, theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
@torch.no_grad()
def test_an_op_may_span_the_activation_and_the_layer_after_it(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the layer's weight and bias, and its results are summed over ranks."""
    x, up, down, bias = torch.randn(5, 10), torch.randn(14, 10), torch.randn(10, 14), torch.randn(10)
    summed: list[Tensor] = []
    monkeypatch.setattr(Parallel, "all_reduce", lambda self, x: summed.append(x) or x)
    out = torch.zeros(5, 10)
    for rank in range(ranks):
        spanning = choice("op", "activate+down", piece("spans_activation"))
        here = build(*made().plan.choices, spanning, parallel=Parallel(rank, ranks))
        spec = tree.MLP.of("mlp", 10, 14, "relu2", bias=True)
        layer = builder(here, spec).block(spec)
        given = {
            "up_proj.weight": up,
            "up_proj.bias": torch.zeros(14),
            "down_proj.weight": down,
            "down_proj.bias": bias,
        }
        filled(here, given, "mlp.")
        out += layer(x, STEP)
    torch.testing.assert_close(out, (x @ up.T).relu().square() @ down.T + bias + ranks, rtol=1e-5, atol=1e-5)
    assert len(summed) == (ranks if ranks > 1 else 0)


@torch.no_grad()
def test_a_shared_expert_with_a_gate() -> None:
    """Qwen2-MoE."""
    config = Qwen2MoeConfig(
        hidden_size=10,
        moe_intermediate_size=6,
        shared_expert_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=False,
    )
    theirs = Qwen2MoeSparseMoeBlock(config)
    state, here = randomized(theirs), made()
    shared = tree.GatedMLP.of("mlp.shared_expert", 10, 8, prefix="shared_", partial=True)
    facts = MoEFacts(site="moe", num_experts=4, top_k=2, hidden_size=10, intermediate_size=6, renormalize=False)
    spec = tree.MoE.of("mlp", facts, shared=shared, shared_gate="shared_expert_gate")
    block = builder(here, spec).block(spec)
    filled(here, state, "mlp.")
    x = torch.randn(7, 10)
    torch.testing.assert_close(block(x, STEP), theirs(x[None])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("latent", [None, 6])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("stacked", [True, False])
@torch.no_grad()
def test_experts_without_gates(latent: int | None, ranks: int, *, stacked: bool) -> None:
    """Nemotron 3, whose experts may work in a narrower space."""
    sizes = {"hidden_size": 10, "moe_intermediate_size": 9, "moe_shared_expert_intermediate_size": 12}
    theirs = NemotronHMoE(NemotronHConfig(**sizes, moe_latent_size=latent, n_routed_experts=4, num_experts_per_tok=2))
    state, x, out = randomized(theirs), torch.randn(7, 10), torch.zeros(7, 10)
    if not stacked:
        for name in ("up_proj", "down_proj"):
            each = enumerate(state.pop(f"experts.{name}"))
            state |= {f"experts.{expert}.{name}.weight": weight for expert, weight in each}
    facts = MoEFacts(
        site="moe", num_experts=4, top_k=2, hidden_size=latent or 10, intermediate_size=9, activation="relu2",
        gated=False, scoring="sigmoid", selection_bias=True,
    )  # fmt: skip
    for rank in range(ranks):
        here = made(Parallel(rank, ranks))
        shared = tree.MLP.of("mlp.shared_experts", 10, 12, "relu2", prefix="shared_", partial=True)
        spaces = ("fc1_latent_proj", "fc2_latent_proj") if latent else ()
        own = {"names": ("up_proj", "down_proj"), "latent": spaces, "hidden_size": 10, "shared": shared}
        spec = tree.MoE.of("mlp", facts, **own)
        block = builder(here, spec).block(spec)
        filled(here, state, "mlp.")
        out += block(x, STEP)
    torch.testing.assert_close(out, theirs(x[None])[0], rtol=1e-5, atol=1e-5)


def test_a_dense_block_with_a_clamped_activation() -> None:
    gate, up, down = torch.randn(8, 10), torch.randn(8, 10), torch.randn(10, 8)
    here, x = made(), torch.randn(7, 10)
    spec = tree.GatedMLP.of("mlp", 10, 8, activation_limit=0.5, up_offset=1.0)
    layer = builder(here, spec).block(spec)
    names = ("gate_proj", "up_proj", "down_proj")
    filled(here, {f"{name}.weight": weight for name, weight in zip(names, (gate, up, down), strict=True)}, "mlp.")
    clamped, other = (x @ gate.T).clamp(max=0.5), (x @ up.T).clamp(-0.5, 0.5)
    expected = (clamped * torch.sigmoid(clamped) * (other + 1)) @ down.T
    torch.testing.assert_close(layer(x, STEP), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_output_gate(ranks: int, per_head: bool) -> None:
    rows = 6 if per_head else 24
    weight, out, x = torch.randn(rows, 10), torch.randn(5, 6, 4), torch.randn(5, 10)
    gate = torch.sigmoid(x @ weight.T).view(5, 6, -1)
    spec = tree.SelfAttention.of("attn", 10, tree.Heads(6, 2, 4), None).gated_by("attn.g_proj", 10, per_head=per_head)
    found = []
    for rank in range(ranks):
        here = made(Parallel(rank, ranks))
        assert spec.gate is not None
        assert spec.gate_proj is not None
        layer = OutputGate(builder(here, spec), spec.gate, spec.gate_proj)
        filled(here, {"attn.g_proj.weight": weight}, "")
        heads = Parallel(rank, ranks).share(6)
        found.append(layer(out[:, heads].flatten(1), x))
    torch.testing.assert_close(torch.cat(found, dim=1), (out * gate).flatten(1))


def test_logits_may_have_a_factor() -> None:
    here, weight, hidden = made(), torch.randn(7, 4), torch.randn(2, 4)
    head = LMHead(here, "head", 4, 7, scale=0.125)
    filled(here, {"head.weight": weight}, "")
    torch.testing.assert_close(head(hidden), hidden @ weight.T / 8)
