"""What the specs' ``examples`` name. Needs llmk-testing and, for the model, transformers, which is its oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.reference.moe import SCORINGS, MoEExamples, fused_moe
from llmk_testing.model_example import ModelExample


def reglu(
    x: Tensor, activation_alpha: float = 1.0, activation_limit: float | None = None, up_offset: float = 0.0
) -> Tensor:
    """``relu(gate) * up``; a factor of what ReLU gets cancels out."""
    gate, up = x.float().chunk(2, dim=-1)
    if activation_limit is not None:
        gate, up = gate.clamp(max=activation_limit), up.clamp(-activation_limit, activation_limit)
    return (gate * (gate > 0) * (up + up_offset)).to(x.dtype)


def sqrt_softplus(logits: Tensor) -> Tensor:
    """The square root of ``log(1 + exp(logits))``."""
    return torch.logaddexp(logits, torch.zeros_like(logits)).sqrt()


def with_floor(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, renormalize_floor: float = 0.0, **options: Any
) -> Tensor:
    """``fused_moe`` whose shares are divided by their sum, or by the floor where the sum is less: that is, times their
    sum by the floor."""
    if not options["renormalize"] or not renormalize_floor:
        return fused_moe(x, router_logits, weights, **options)
    rows = []
    plain = {**options, "renormalize": False}
    scoring = options.get("scoring", "softmax")
    top_k, scores_of = options["top_k"], scoring if callable(scoring) else SCORINGS.get(scoring, sqrt_softplus)
    cap = options.get("router_softcap")
    for row, logits in zip(x, router_logits.float(), strict=True):
        capped = logits if cap is None else cap * torch.tanh(logits / cap)
        total = _chosen_sum(scores_of(capped[None])[0], top_k, options)
        made = fused_moe(
            row[None].float(), logits[None], {name: each.float() for name, each in weights.items()}, **plain
        )
        rows.append(made[0] / max(total, renormalize_floor))
    return torch.stack(rows).to(x.dtype) if rows else torch.zeros_like(x)


def _chosen_sum(scores: Tensor, top_k: int, options: Mapping[str, Any]) -> float:
    """The sum of the scores of the experts that one token chooses."""
    bias = options.get("selection_bias")
    ranked = (scores if bias is None else scores + bias.float()).tolist()
    groups = options.get("num_groups", 1)
    size = len(ranked) // groups
    lists = [ranked[group * size : (group + 1) * size] for group in range(groups)]
    best = 2 if options.get("group_scoring", "max") == "top2_sum" else 1
    order = sorted(range(groups), key=lambda group: -sum(sorted(lists[group])[-best:]))
    open_groups = set(order[: options.get("top_groups", 1)])
    candidates = [expert for expert in range(len(ranked)) if expert // size in open_groups]
    chosen = sorted(candidates, key=lambda expert: -ranked[expert])[:top_k]
    return float(sum(scores[expert].item() for expert in chosen))


MIXTURES = MoEExamples(
    activations={"reglu": reglu},
    scorings={"sqrt_softplus": sqrt_softplus},
    facts=({"renormalize_floor": 0.75}, {"renormalize_floor": 2.0, "router_softcap": 3.0}),
    oracle=with_floor,
)

CHECKPOINTS = (
    ModelExample.of_transformers(
        "windows-and-experts",
        "afmoe",
        head_dim=16,
        num_hidden_layers=4,
        num_dense_layers=1,
        num_experts=8,
        num_experts_per_tok=3,
        num_shared_experts=2,
        moe_intermediate_size=24,
        route_scale=1.5,
        sliding_window=7,
        global_attn_every_n_layers=2,
        mup_enabled=True,
    ),
    ModelExample.of_transformers(
        "tied-biases-listed",
        "afmoe",
        head_dim=32,
        num_key_value_heads=1,
        num_hidden_layers=3,
        num_dense_layers=2,
        num_experts=5,
        num_experts_per_tok=2,
        num_shared_experts=1,
        moe_intermediate_size=40,
        route_scale=0.5,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        attention_bias=True,
        tie_word_embeddings=True,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
)
