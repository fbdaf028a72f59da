"""A mixture of experts over tokens that are sorted by expert.

Weights are kept transposed, ``[in, out]`` of each expert, so that a GEMM of few rows reads them in the order in which
they lie. Experts of little weight may be left out (dynamic routing in the manner of arXiv:2403.07652): with the fact
``min_share``, a token uses those of its ``top_k`` experts whose weight is at least ``min_share`` times that of the one
with the greatest weight, and ``renormalize`` divides by the sum of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 2048
"""Most rows of an expert that are computed at a time, which bounds the memory of a long prompt's features."""


@dataclass(frozen=True, slots=True)
class TransposedExperts:
    """What :func:`prepare` returns: ``gate_up`` ``[E, H, 2 * I]``, ``down`` ``[E, I, H]``, and biases ``[E, 2 * I]``
    and ``[E, H]``, or ``None``."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


def prepare(parameters: Mapping[str, Tensor]) -> TransposedExperts:
    """Transposes the weights; the parameters stay as they are."""
    gate_up, down = (parameters[name].transpose(1, 2).contiguous() for name in ("gate_up", "down"))
    return TransposedExperts(gate_up, down, parameters.get("gate_up_bias"), parameters.get("down_bias"))


def softsign_scores(logits: Tensor) -> Tensor:
    """``(1 + x / (1 + |x|)) / 2``, between 0 and 1. For negative logits it is computed without a difference, so that no
    score is rounded to zero."""
    rest = 0.5 / (1 + logits.abs())
    return torch.where(logits < 0, rest, 1 - rest)


SCORINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
    "softsign": softsign_scores,
}
"""By name, from float32 logits ``[T, E]`` to scores."""


def gated(features: Tensor, activation: str, limit: float | None = None) -> Tensor:
    """``[..., 2 * I]``, gate first, to ``[..., I]``: ``"silu"``, ``silu(gate) * up``, or ``"reglu2"``, ``relu(gate)**2
    * up``. In float32 and rounded once, since squares are beyond float16 soon."""
    gate, up = features.float().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    gate = torch.nn.functional.silu(gate) if activation == "silu" else gate.relu().square()
    return (gate * up).to(features.dtype)


def sorted_experts(
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
    min_share: float = 0.0,
) -> Tensor:
    """As :func:`llmk.reference.moe.fused_moe`: ``[T, H]`` in ``x``'s dtype, of a sum in float32. Reads the number of
    tokens of each expert back, once."""
    scores = SCORINGS[scoring](router_logits.float())
    ranked = scores if selection_bias is None else scores + selection_bias.float()
    if top_groups < num_groups:
        ranked = _best_groups_only(ranked, num_groups, top_groups, group_scoring)
    experts = ranked.topk(top_k, dim=-1).indices
    shares, used = _shares(scores.gather(1, experts), renormalize, min_share)
    shares = shares * scaling

    num_experts = weights.gate_up.shape[0]
    keys = experts.masked_fill(~used, num_experts).flatten()  # what is left out comes last
    order = keys.argsort(stable=True)
    tokens, shares = order // top_k, shares.flatten()[order]
    counts = torch.bincount(keys, minlength=num_experts)[:num_experts].tolist()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        stop = start + count
        for first in range(start, stop, ROWS_AT_ONCE):
            chosen = slice(first, min(first + ROWS_AT_ONCE, stop))
            rows = tokens[chosen]
            features = _multiply(x[rows], weights.gate_up[expert], weights.gate_up_bias, expert)
            features = gated(features, activation, activation_limit)
            result = _multiply(features, weights.down[expert], weights.down_bias, expert)
            out.index_add_(0, rows, result.float() * shares[chosen, None])
        start = stop
    return out.to(x.dtype)


def _shares(scores: Tensor, renormalize: bool, min_share: float) -> tuple[Tensor, Tensor]:
    """The weights of each token's experts, float32 ``[T, top_k]``, and which of them are used."""
    used = scores >= min_share * scores.amax(dim=-1, keepdim=True)
    shares = scores * used
    return shares / shares.sum(dim=-1, keepdim=True) if renormalize else shares, used


def _best_groups_only(ranked: Tensor, num_groups: int, top_groups: int, group_scoring: str) -> Tensor:
    """``ranked`` (``[T, E]``) with minus infinity for experts outside of each token's best groups."""
    grouped = ranked.unflatten(-1, (num_groups, -1))
    best_two = grouped.topk(2 if group_scoring == "top2_sum" else 1, dim=-1).values
    best = best_two.sum(dim=-1).topk(top_groups, dim=-1).indices
    closed = torch.ones(grouped.shape[:2], dtype=torch.bool, device=ranked.device).scatter(1, best, False)
    return grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)


def _multiply(rows: Tensor, weight: Tensor, biases: Tensor | None, expert: int) -> Tensor:
    return rows @ weight if biases is None else torch.addmm(biases[expert], rows, weight)
