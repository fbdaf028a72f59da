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
_GROUP_SCORING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "max": lambda scores: scores.amax(dim=-1),
    "top2_sum": lambda scores: scores.topk(2, dim=-1).values.sum(dim=-1),
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
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
) -> Tensor:
    """Sends every token through its ``top_k`` experts and adds up what they give, weighted. ``x`` stays as it is.

    Reads back once per call how many tokens each expert got, so experts that nobody chose cost nothing.

    Args:
        x: ``[T, H]``.
        router_logits: ``[T, E]``.
        weights: ``gate_up`` ``[E, 2 * I, H]``, gate rows before up rows, and ``down`` ``[E, H, I]``; where the experts
            have biases, ``gate_up_bias`` ``[E, 2 * I]`` and ``down_bias`` ``[E, H]``.
        renormalize, scoring, selection_bias, scaling, num_groups, top_groups, group_scoring: as in :func:`route`.
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
        num_groups=num_groups,
        top_groups=top_groups,
        group_scoring=group_scoring,
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
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
) -> tuple[Tensor, Tensor]:
    """Which experts each token goes to, and with what weight.

    Args:
        router_logits: ``[T, E]``; scored in float32.
        renormalize: whether the chosen weights are divided by their sum.
        scoring: ``"softmax"`` over all experts, or ``"sigmoid"`` of each (DeepSeek-V3, arXiv:2412.19437).
        selection_bias: ``[E]``, added to the scores for choosing only.
        scaling: multiplies the weights at the end.
        num_groups, top_groups: the experts fall into ``num_groups`` of equal size that follow one another; a token
            chooses among those in its ``top_groups`` best (DeepSeek-V2, arXiv:2405.04434).
        group_scoring: by its best expert (``"max"``), or by its two best, added (``"top2_sum"``, DeepSeek-V3).

    Returns:
        float32 ``[T, top_k]`` and int64 ``[T, top_k]``, best first.
    """
    scores = _SCORING[scoring](router_logits.float())
    ranked = scores if selection_bias is None else scores + selection_bias.float()
    if top_groups < num_groups:
        ranked = _within_best(ranked, num_groups, top_groups, group_scoring)
    experts = ranked.topk(top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * scaling, experts


def _within_best(ranked: Tensor, num_groups: int, top_groups: int, group_scoring: str) -> Tensor:
    """``ranked`` (``[T, E]``) with minus infinity in all groups but the best."""
    groups = ranked.unflatten(1, (num_groups, -1))
    best = _GROUP_SCORING[group_scoring](groups).topk(top_groups, dim=-1).indices
    best = best[..., None].expand(-1, -1, groups.shape[-1])
    return torch.full_like(groups, float("-inf")).scatter(1, best, groups.gather(1, best)).flatten(1)


def _row(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]
