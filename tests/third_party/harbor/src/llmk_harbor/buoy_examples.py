"""What the specs' ``examples`` name: the conformance kit imports it, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from llmk.reference.moe import MoEExamples, route
from llmk_testing.model_example import ModelExample


def reglu2(features: Tensor, *, activation_limit: float | None = None) -> Tensor:
    """``relu(gate)**2 * up``, of clamped features."""
    gate, up = features.double().tensor_split(2, dim=-1)
    if activation_limit is not None:
        gate = torch.where(gate > activation_limit, activation_limit, gate)
        up = torch.clip(up, -activation_limit, activation_limit)
    return torch.where(gate > 0, gate * gate * up, 0.0).to(features.dtype)


def swiglu(features: Tensor, *, activation_limit: float | None = None) -> Tensor:
    """``gate * sigmoid(gate) * up``, of clamped features."""
    gate, up = features.double().tensor_split(2, dim=-1)
    if activation_limit is not None:
        gate, up = gate.clip(max=activation_limit), up.clip(-activation_limit, activation_limit)
    return (gate * up / (1 + torch.exp(-gate))).to(features.dtype)


def softsign(logits: Tensor) -> Tensor:
    """``(1 + x / (1 + |x|)) / 2``, as ``1 / (2 * (1 + |x|))`` below zero, where the sum cancels."""
    tail = 1 / (1 + logits.abs()) / 2
    return torch.where(logits >= 0, 1 - tail, tail)


_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {"silu": swiglu, "reglu2": reglu2}


def experts_oracle(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    top_k: int,
    renormalize: bool,
    activation: str = "silu",
    scoring: str = "softmax",
    selection_bias: Tensor | None = None,
    scaling: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
    activation_limit: float | None = None,
    min_share: float = 0.0,
) -> Tensor:
    """A mixture of experts with ``min_share``, token by token and expert by expert, in float64."""
    shares, experts = route(
        router_logits,
        top_k,
        renormalize=False,
        scoring=softsign if scoring == "softsign" else scoring,
        selection_bias=selection_bias,
        num_groups=num_groups,
        top_groups=top_groups,
        group_scoring=group_scoring,
    )
    gate_up, down = weights["gate_up"], weights["down"]
    gate_up_bias, down_bias = weights.get("gate_up_bias"), weights.get("down_bias")
    options = {} if activation_limit is None else {"activation_limit": activation_limit}
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for token, (own, chosen) in enumerate(zip(shares, experts.tolist(), strict=True)):
        stays = [share.item() >= min_share * own.max().item() for share in own]
        divisor = sum(share.item() for share, there in zip(own, stays, strict=True) if there) if renormalize else 1.0
        for share, expert, there in zip(own, chosen, stays, strict=True):
            if there:
                features = gate_up[expert].double() @ x[token].double()
                features = features if gate_up_bias is None else features + gate_up_bias[expert].double()
                result = down[expert].double() @ _ACTIVATIONS[activation](features, **options)
                result = result if down_bias is None else result + down_bias[expert].double()
                out[token] += result * (share.item() / divisor * scaling)
    return out.to(x.dtype)


EXPERTS = MoEExamples(
    activations={"reglu2": reglu2},
    scorings={"softsign": softsign},
    facts=({"min_share": 0.6}, {"min_share": 0.25}, {"min_share": 1.0}),
    oracle=experts_oracle,
)

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_REFUSED = (
    ({"hidden_act": "quick_gelu"}, "hidden_act"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
)


def _example(name: str, **config: Any) -> ModelExample:
    return replace(ModelExample.of_transformers(name, "hyperclovax", **config), refused=_REFUSED)


CHECKPOINTS = (
    _example(
        "mup",
        embedding_multiplier=3.0,
        logits_scaling=0.25,
        residual_multiplier=0.6,
        attention_multiplier=0.15,
        attention_bias=True,
        use_post_norm=True,
    ),
    _example("factor-1", head_dim=32, num_key_value_heads=1, hidden_act="gelu_pytorch_tanh", rope_parameters=_LLAMA3),
    _example(
        "no-post-norm",
        use_post_norm=False,
        residual_multiplier=0.4,
        logits_scaling=2.0,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
)
