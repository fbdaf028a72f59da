"""Mixtures of experts by permutation: the rows of all tokens are put in the order of their experts once, each expert
computes a run of them, and every token gathers and sums what its experts made of it. Besides the core's activations and
scorings, it has those of ReLU-sparse models (TurboSparse, arXiv:2406.05955) and of DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TransposedExperts:
    """Weights as the GEMMs read them: ``first`` ``[E, H, 2 * I]``, ``second`` ``[E, I, H]``; biases ``[E, 2 * I]`` and
    ``[E, H]``, if there are any."""

    first: Tensor
    second: Tensor
    first_bias: Tensor | None
    second_bias: Tensor | None


def prepare_transposed(parameters: Mapping[str, Tensor]) -> TransposedExperts:
    """Copies the weights, so that the inputs of an expert are the rows of its matrix."""
    return TransposedExperts(
        parameters["gate_up"].mT.contiguous(),
        parameters["down"].mT.contiguous(),
        parameters.get("gate_up_bias"),
        parameters.get("down_bias"),
    )


def permuted_experts(
    x: Tensor,
    router_logits: Tensor,
    weights: TransposedExperts,
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
) -> Tensor:
    """``[tokens, hidden]`` to the same, in ``x``'s dtype; arguments are as in ``llmk.reference.moe.fused_moe``.

    The host reads once per call how many rows each expert has. The weighted sum is in float32.
    """
    scores = SCORINGS[scoring](router_logits.float())
    ranked = scores if selection_bias is None else scores + selection_bias.float()
    if top_groups < num_groups:
        ranked = ranked.masked_fill(~_in_best_groups(ranked, num_groups, top_groups, group_scoring), float("-inf"))
    chosen = ranked.topk(top_k, dim=-1).indices
    shares = scores.gather(1, chosen)
    if renormalize:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    shares = shares * scaling

    # Row ``place[t, i]`` of the permuted rows is token ``t`` at its ``i``-th expert.
    order = chosen.flatten().argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    rows = x[order // top_k]
    counts = torch.bincount(chosen.flatten(), minlength=scores.shape[1]).tolist()
    made = torch.empty_like(rows)
    end = 0
    for expert, count in enumerate(counts):
        start, end = end, end + count
        if count:
            made[start:end] = _compute(rows[start:end], weights, expert, activation, activation_limit)
    each = made[place].unflatten(0, (-1, top_k))
    return torch.bmm(shares[:, None], each.float()).squeeze(1).to(x.dtype)


def _compute(rows: Tensor, weights: TransposedExperts, expert: int, activation: str, limit: float | None) -> Tensor:
    """What one expert makes of its rows, ``[rows, H]``."""
    features = _multiply(rows, weights.first, weights.first_bias, expert)
    gate, up = features.float().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return _multiply(GATINGS[activation](gate, up).to(rows.dtype), weights.second, weights.second_bias, expert)


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
    return rows @ weight[expert] if bias is None else torch.addmm(bias[expert], rows, weight[expert])


def _in_best_groups(ranked: Tensor, num_groups: int, top_groups: int, group_scoring: str) -> Tensor:
    """Which experts are in the ``top_groups`` best groups of each token, bool ``[T, E]``. A group is as good as its
    best expert (``"max"``), or as the sum of its two best (``"top2_sum"``)."""
    groups = ranked.unflatten(1, (num_groups, -1))
    best = groups.topk(2 if group_scoring == "top2_sum" else 1, dim=-1).values.sum(dim=-1)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, best.topk(top_groups, dim=-1).indices, True)
    return kept.repeat_interleave(groups.shape[-1], dim=1)


def _sqrt_softplus(logits: Tensor) -> Tensor:
    """Scores that grow without bound, but slower than the logits (DeepSeek-V4)."""
    return F.softplus(logits).sqrt()


SCORINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": _sqrt_softplus,
}
"""From router logits, float32 ``[T, E]``, to scores."""

GATINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "relu": lambda gate, up: F.relu(gate) * up,
    "drelu": lambda gate, up: F.relu(gate) * F.relu(up),
}
"""From gate and up features, in float32; ``"drelu"`` is 0 wherever one of the two is below 0."""
