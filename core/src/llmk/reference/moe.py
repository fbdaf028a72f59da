"""Mixture of experts by a loop over the experts that tokens chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.activations import ACTIVATIONS

_SCORING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
}


def fused_moe(
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
) -> Tensor:
    """Sends every token through its ``top_k`` experts and adds up what they give, weighted. ``x`` stays as it is.

    Reads back once per call how many tokens each expert got, so experts that nobody chose cost nothing.

    Args:
        x: ``[T, H]``.
        router_logits: ``[T, E]``.
        weights: ``gate_up`` ``[E, 2 * I, H]``, gate rows before up rows, and ``down`` ``[E, H, I]``; where the experts
            have biases, ``gate_up_bias`` ``[E, 2 * I]`` and ``down_bias`` ``[E, H]``.
        renormalize, scoring, selection_bias, scaling: as in :func:`route`.
        activation: a name in :data:`llmk.reference.activations.ACTIVATIONS`.

    Returns:
        ``[T, H]`` in ``x``'s dtype; the weighted sum is float32.
    """
    shares, experts = route(
        router_logits,
        top_k,
        renormalize=renormalize,
        scoring=scoring,
        selection_bias=selection_bias,
        scaling=scaling,
    )
    activate = ACTIVATIONS[activation]
    order = experts.flatten().argsort(stable=True)
    tokens = order // top_k
    shares = shares.flatten()[order]
    gate_up, down = weights["gate_up"], weights["down"]
    gate_up_bias, down_bias = weights.get("gate_up_bias"), weights.get("down_bias")
    counts = torch.bincount(experts.flatten(), minlength=gate_up.shape[0]).tolist()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            chosen = slice(start, start + count)
            start += count
            gated = F.linear(x[tokens[chosen]], gate_up[expert], _row(gate_up_bias, expert))
            result = F.linear(activate(gated), down[expert], _row(down_bias, expert))
            out.index_add_(0, tokens[chosen], result.float() * shares[chosen, None])
    return out.to(x.dtype)


def route(
    router_logits: Tensor,
    top_k: int,
    *,
    renormalize: bool,
    scoring: str = "softmax",
    selection_bias: Tensor | None = None,
    scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Which experts each token goes to, and with what weight.

    Args:
        router_logits: ``[T, E]``; scored in float32.
        renormalize: whether the chosen weights are divided by their sum.
        scoring: ``"softmax"`` over all experts, or ``"sigmoid"`` of each (DeepSeek-V3, arXiv:2412.19437).
        selection_bias: ``[E]``, added to the scores for choosing only.
        scaling: multiplies the weights at the end.

    Returns:
        float32 ``[T, top_k]`` and int64 ``[T, top_k]``, best first.
    """
    scores = _SCORING[scoring](router_logits.float())
    ranked = scores if selection_bias is None else scores + selection_bias.float()
    experts = ranked.topk(top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * scaling, experts


def _row(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]
