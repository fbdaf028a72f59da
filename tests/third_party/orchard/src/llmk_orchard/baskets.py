"""Mixtures of experts, expert by expert: weights are kept with inputs before outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

ACTIVATIONS = {"silu": silu, "gelu_tanh": lambda x: gelu(x, approximate="tanh")}


def prepare(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Transposes the weights of experts."""
    return {
        name: tensor if name.endswith("bias") else tensor.transpose(1, 2).contiguous()
        for name, tensor in parameters.items()
    }


def choose(
    logits: Tensor, top_k: int, scoring: str, selection_bias: Tensor | None, *, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """The experts of each token, and their weights."""
    logits = logits.float()
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    ranked = scores if selection_bias is None else scores + selection_bias
    chosen = ranked.topk(top_k, dim=-1).indices
    weights = scores.gather(1, chosen)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return chosen, weights * scaling


def baskets(
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
    gated: bool = True,
) -> Tensor:
    """As ``llmk.reference.moe.fused_moe`` says."""
    chosen, shares = choose(router_logits, top_k, scoring, selection_bias, renormalize=renormalize, scaling=scaling)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(router_logits.shape[1]):
        tokens, places = (chosen == expert).nonzero(as_tuple=True)
        if not len(tokens):
            continue
        both = x[tokens] @ weights["gate_up"][expert]
        if "gate_up_bias" in weights:
            both = both + weights["gate_up_bias"][expert]
        gate, up = both.chunk(2, dim=-1)
        found = (ACTIVATIONS[activation](gate) * up) @ weights["down"][expert]
        if "down_bias" in weights:
            found = found + weights["down_bias"][expert]
        out.index_add_(0, tokens, found.float() * shares[tokens, places, None])
    return out.to(x.dtype)
