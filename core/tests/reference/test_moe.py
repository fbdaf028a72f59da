"""Mixture of experts against every expert on every token in float64, and against ``transformers``' block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, Qwen3MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from llmk.reference import moe, quantize, quantized_weight
from llmk.reference.moe import fused_moe, fused_moe_invariant, prepare_invariant, route

BOUND = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def by_hand(x: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor, biases: tuple[Tensor, Tensor] | None) -> Tensor:
    """``shares`` ``[T, E]``: the weight of every expert for every token, zero where it wasn't chosen."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for expert in range(gate_up.shape[0]):
        both = x.double() @ gate_up[expert].double().T
        if biases is not None:
            both = both + biases[0][expert].double()
        gate, up = both.chunk(2, dim=-1)
        result = (gate * torch.sigmoid(gate) * up) @ down[expert].double().T
        if biases is not None:
            result = result + biases[1][expert].double()
        out += shares[:, expert, None].double() * result
    return out


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 4, 1), (7, 5, 2), (33, 16, 4), (3, 3, 3)])
def test_agrees_with_all_experts_on_all_tokens(
    tokens: int, experts: int, top_k: int, biased: bool, dtype: torch.dtype
) -> None:
    x, logits = torch.randn(tokens, 20).to(dtype), torch.randn(tokens, experts)
    gate_up, down = torch.randn(experts, 26, 20).to(dtype) / 4, torch.randn(experts, 20, 13).to(dtype) / 4
    biases = (torch.randn(experts, 26).to(dtype), torch.randn(experts, 20).to(dtype)) if biased else None
    weights = {"gate_up": gate_up, "down": down}
    if biases is not None:
        weights |= {"gate_up_bias": biases[0], "down_bias": biases[1]}
    out = fused_moe(x, logits, weights, top_k=top_k, renormalize=True, scaling=1.5)
    probabilities = torch.softmax(logits.double(), -1)
    best = probabilities.sort(dim=-1, descending=True).values[:, top_k - 1, None]
    shares = torch.where(probabilities >= best, probabilities, 0)
    shares = 1.5 * shares / shares.sum(-1, keepdim=True)
    assert out.dtype == dtype
    expected = by_hand(x, shares, gate_up, down, biases)
    assert error(out, expected) < BOUND[dtype]
    tiled = fused_moe_invariant(x, logits, prepare_invariant(weights), top_k=top_k, renormalize=True, scaling=1.5)
    assert tiled.dtype == dtype
    assert error(tiled, expected) < BOUND[dtype]


@pytest.mark.parametrize("renormalize", [True, False])
def test_agrees_with_transformers(renormalize: bool) -> None:
    config = Qwen3MoeConfig(
        hidden_size=24, moe_intermediate_size=10, num_experts=6, num_experts_per_tok=2, norm_topk_prob=renormalize
    )
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(11, 24)
    with torch.no_grad():
        expected = block(x[None])[0]
        out = fused_moe(
            x,
            x @ block.gate.weight.T,
            {"gate_up": block.experts.gate_up_proj, "down": block.experts.down_proj},
            top_k=2,
            renormalize=renormalize,
        )
    assert error(out, expected) < 1e-6


def routed(router: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, weights and experts by a router of transformers, experts in their order."""
    with torch.no_grad():
        logits, weights, experts = router(x)
    order = experts.argsort(dim=-1)
    return logits, weights.gather(1, order), experts.gather(1, order)


@pytest.mark.parametrize(
    ("num_experts", "num_groups", "top_groups", "top_k"), [(12, 4, 2, 3), (12, 4, 1, 3), (8, 8, 3, 3), (6, 2, 2, 5)]
)
def test_best_groups_agree_with_transformers(num_experts: int, num_groups: int, top_groups: int, top_k: int) -> None:
    """DeepSeek-V2 scores a group by its best expert; a limit that leaves out no group has no effect."""
    router = DeepseekV2TopkRouter(
        DeepseekV2Config(
            hidden_size=32,
            n_routed_experts=num_experts,
            num_experts_per_tok=top_k,
            n_group=num_groups,
            topk_group=top_groups,
            topk_method="group_limited_greedy",
            routed_scaling_factor=2.5,
        )
    )
    torch.nn.init.normal_(router.weight, std=0.5)
    logits, weights, experts = routed(router, torch.randn(50, 32))
    groups = {"num_groups": num_groups, "top_groups": top_groups}
    found, chosen = route(logits, top_k, renormalize=False, scaling=2.5, **groups)
    order = chosen.argsort(dim=-1)
    assert torch.equal(chosen.gather(1, order), experts)
    torch.testing.assert_close(found.gather(1, order), weights)
    unlimited = route(logits, top_k, renormalize=False)[1]
    assert torch.equal(chosen, unlimited) == (top_groups >= min(top_k, num_groups))


def test_groups_by_their_two_best_agree_with_transformers() -> None:
    router = DeepseekV3TopkRouter(
        DeepseekV3Config(
            hidden_size=32, n_routed_experts=12, num_experts_per_tok=3, n_group=3, topk_group=2, norm_topk_prob=True
        )
    )
    torch.nn.init.normal_(router.weight, std=0.5)
    torch.nn.init.normal_(router.e_score_correction_bias, std=0.5)
    logits, weights, experts = routed(router, torch.randn(50, 32))
    groups = {"num_groups": 3, "top_groups": 2}
    found, chosen = route(
        logits,
        3,
        renormalize=True,
        scoring="sigmoid",
        selection_bias=router.e_score_correction_bias,
        scaling=router.routed_scaling_factor,
        group_scoring="top2_sum",
        **groups,
    )
    order = chosen.argsort(dim=-1)
    assert torch.equal(chosen.gather(1, order), experts)
    torch.testing.assert_close(found.gather(1, order), weights)
    by_best = route(logits, 3, renormalize=True, scoring="sigmoid", group_scoring="max", **groups)[1]
    assert not torch.equal(chosen, by_best)


def test_sigmoid_scores_with_a_bias_that_only_chooses() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    weights, experts = route(logits, 2, renormalize=False, scoring="sigmoid", selection_bias=bias, scaling=2.0)
    assert experts.tolist() == [[3, 0]]
    torch.testing.assert_close(weights, 2 * torch.sigmoid(torch.tensor([[-1.0, 2.0]])))


def test_router_logits_may_have_a_soft_cap() -> None:
    logits = torch.tensor([[-80.0, 0.5, 2.0, 90.0], [1.0, 2.0, 3.0, 4.0]])
    found = route(logits, 2, renormalize=False, router_softcap=3.0)
    expected = route(3 * torch.tanh(logits / 3), 2, renormalize=False)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1].equal(expected[1])


def test_a_scoring_may_be_a_function() -> None:
    logits = torch.randn(3, 6)
    found = route(logits, 2, renormalize=True, scoring=lambda logits: 1 / (1 + torch.exp(-logits)))
    for one, other in zip(found, route(logits, 2, renormalize=True, scoring="sigmoid"), strict=True):
        torch.testing.assert_close(one, other)


def test_an_unknown_scoring_is_refused() -> None:
    with pytest.raises(KeyError, match="tanh"):
        route(torch.zeros(1, 2), 1, renormalize=False, scoring="tanh")


@pytest.mark.parametrize("name", ["int8_channel", "fp8_channel", "fp8_block"])
@pytest.mark.parametrize("bias", [True, False])
def test_quantized_experts_match_their_dequantized_weights(name: str, bias: bool) -> None:
    x, logits = torch.randn(9, 144), torch.randn(9, 5)
    exact = {"gate_up": torch.randn(5, 260, 144), "down": torch.randn(5, 144, 130)}
    stored = {f"{key}_bias": torch.randn(weight.shape[:2]) for key, weight in exact.items() if bias}
    plain = dict(stored)
    for key, weights in exact.items():
        parts = [getattr(quantize, f"quantize_{name}")(weight) for weight in weights]
        for kind in ("weight", "weight_scale"):
            stored[key + kind.removeprefix("weight")] = torch.stack([part[kind] for part in parts])
        prepare = getattr(quantized_weight, f"prepare_{name}")
        plain[key] = torch.stack([prepare(part).dequantize(torch.float32) for part in parts])
    prepared = getattr(moe, f"prepare_moe_{name}")(stored)
    found = moe.fused_moe_dequantized(x, logits, prepared, top_k=2, renormalize=True)
    assert error(found, fused_moe(x, logits, plain, top_k=2, renormalize=True)) < 1e-5


def test_rows_are_batch_invariant() -> None:
    x, logits = torch.randn(9, 20), torch.randn(9, 5)
    weights = {"gate_up": torch.randn(5, 26, 20), "down": torch.randn(5, 20, 13)}
    together = fused_moe(x, logits, weights, top_k=2, renormalize=True)
    for row in range(9):
        one = slice(row, row + 1)
        alone = fused_moe(x[one], logits[one], weights, top_k=2, renormalize=True)
        assert error(alone, together[one]) < 1e-6
