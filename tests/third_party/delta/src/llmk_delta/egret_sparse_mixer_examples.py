"""What the conformance kit compares the sparse mixer with: expert by expert, as Phi-3.5-MoE writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.reference.moe import MoEExamples, fused_moe


def oracle(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    top_k: int,
    renormalize: bool,
    sparsemixer_eps: float,
    selection_bias: Tensor | None = None,
    scaling: float = 1.0,
    scoring: str = "softmax",
    **options: Any,
) -> Tensor:
    """Routes token by token. Each expert is then run by :func:`fused_moe` with that expert alone, whose weight is 1."""
    shares = torch.zeros(router_logits.shape, dtype=torch.float32, device=x.device)
    for token, logits in enumerate(router_logits.float()):
        left = set(range(len(logits)))
        chosen: dict[int, Tensor] = {}
        for _ in range(top_k):
            bias = torch.zeros_like(logits) if selection_bias is None else selection_bias.float()
            best = max(left, key=lambda expert: (float(logits[expert] + bias[expert]), -expert))
            own = logits[best]
            distance = (own - logits) / torch.maximum(logits.abs(), own)
            near = [expert for expert in left if not distance[expert] > 2 * sparsemixer_eps]
            chosen[best] = torch.exp(own - torch.logsumexp(logits[near], dim=0))
            left.remove(best)
        total = sum(chosen.values()) if renormalize else 1.0
        for expert, share in chosen.items():
            shares[token, expert] = share / total * scaling
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in shares.any(dim=0).nonzero().flatten().tolist():
        alone = {name: tensor[expert : expert + 1] for name, tensor in weights.items()}
        made = fused_moe(x, router_logits[:, :1], alone, top_k=1, renormalize=False, **_for_one(options))
        out += made.float() * shares[:, expert, None]
    return out.to(x.dtype)


def _for_one(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a mixture that hold for one expert: those of its activation."""
    routing = ("num_groups", "top_groups", "group_scoring")
    return {name: value for name, value in options.items() if name not in routing}


SPARSE_MIXER = MoEExamples(facts=({"sparsemixer_eps": 0.01}, {"sparsemixer_eps": 0.2}), oracle=oracle)
