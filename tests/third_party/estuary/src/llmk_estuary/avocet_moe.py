"""Mixtures of experts by panels: of each expert, the gate and up features of a panel lie side by side, so that a panel
of an expert's first layer is one GEMM with the activation right after it, and the wide intermediate of all features
never exists. Experts have no capacity: rows are ordered by expert, and each computes exactly those that chose it.

Other than the core's kernels, it has the gated activation ``reglu``, the scoring ``sqrt_softplus`` (DeepSeek-V4), and
the fact ``renormalize_floor``, the least sum by which shares are divided (Ernie 4.5 has one).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 128
"""Gate features, and as many up features, that are computed at a time."""


@dataclass(frozen=True, slots=True)
class Panels:
    """What :func:`prepare` returns. With gates, ``gate_up`` and its bias have, by panels, gate rows and up rows."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    gated: bool


_SMOOTH: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
GATES: Mapping[str, Callable[[Tensor], Tensor]] = {**_SMOOTH, "reglu": F.relu}
PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {**_SMOOTH, "relu": F.relu, "relu2": lambda x: F.relu(x).square()}
SCORINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": lambda logits: F.softplus(logits).sqrt(),
}


def prepare(parameters: Mapping[str, Tensor]) -> Panels:
    """Parameters as :func:`llmk.reference.moe.fused_moe` takes them, with the rows of ``gate_up`` by panels. ``down``
    is shared with the parameters, and so is ``gate_up`` of experts without gates."""
    gate_up, down = parameters["gate_up"], parameters["down"]
    bias, inner = parameters.get("gate_up_bias"), down.shape[2]
    gated = gate_up.shape[1] == 2 * inner
    if gated:
        order = _by_panels(inner).to(gate_up.device)
        gate_up = gate_up[:, order]
        bias = None if bias is None else bias[:, order]
    return Panels(gate_up, down, bias, parameters.get("down_bias"), gated)


def panel_moe(
    x: Tensor,
    router_logits: Tensor,
    weights: Panels,
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
    router_softcap: float | None = None,
    renormalize_floor: float = 0.0,
    **parameters: float,
) -> Tensor:
    """``[tokens, hidden]`` to the same, in ``x``'s dtype; the weighted sum is float32. Arguments are those of
    :func:`llmk.reference.moe.fused_moe`, and ``renormalize_floor``; ``parameters`` are those of the activation."""
    logits = router_logits.float()
    if router_softcap is not None:
        logits = router_softcap * torch.tanh(logits / router_softcap)
    scores = SCORINGS[scoring](logits)
    ranked = scores if selection_bias is None else scores + selection_bias.float()
    if top_groups < num_groups:
        ranked = _in_best_groups(ranked, num_groups, top_groups, group_scoring)
    chosen = ranked.topk(top_k, dim=-1).indices
    shares = scores.gather(1, chosen)
    if renormalize:
        total = shares.sum(dim=-1, keepdim=True).clamp(min=renormalize_floor)
        shares = shares / total.masked_fill(total == 0, 1.0)  # all scores may be too small for float32
    shares = shares * scaling

    # Rows by expert; within an expert, in the order of tokens.
    order = chosen.flatten().argsort(stable=True)
    tokens, shares = order // top_k, shares.flatten()[order]
    counts = torch.bincount(chosen.flatten(), minlength=weights.down.shape[0]).tolist()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    stop = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        start, stop = stop, stop + count
        own = tokens[start:stop]
        features = _first_layer(x[own], weights, expert, GATES[activation] if gated else PLAIN[activation], parameters)
        bias = None if weights.down_bias is None else weights.down_bias[expert]
        made = F.linear(features, weights.down[expert], bias)
        out.index_add_(0, own, made.float() * shares[start:stop, None])
    return out.to(x.dtype)


def _first_layer(
    rows: Tensor,
    weights: Panels,
    expert: int,
    activation: Callable[[Tensor], Tensor],
    parameters: Mapping[str, float],
) -> Tensor:
    """The activated features of an expert, ``[rows, inner]``, panel by panel."""
    weight = weights.gate_up[expert]
    bias = None if weights.gate_up_bias is None else weights.gate_up_bias[expert]
    inner = weights.down.shape[2]
    features = rows.new_empty(len(rows), inner)
    parts = 2 if weights.gated else 1
    for first in range(0, inner, PANEL):
        last = min(first + PANEL, inner)
        panel = slice(parts * first, parts * last)
        computed = F.linear(rows, weight[panel], None if bias is None else bias[panel]).float()
        if weights.gated:
            gate, up = computed.chunk(2, dim=-1)
            computed = _gate(gate, up, activation, **parameters)
        else:
            computed = activation(computed)
        features[:, first:last] = computed
    return features


def _gate(
    gate: Tensor,
    up: Tensor,
    activation: Callable[[Tensor], Tensor],
    activation_alpha: float = 1.0,
    activation_limit: float | None = None,
    up_offset: float = 0.0,
) -> Tensor:
    """``activation(alpha * gate) / alpha * (up + up_offset)`` of clamped features, in float32."""
    if activation_limit is not None:
        gate, up = gate.clamp(max=activation_limit), up.clamp(-activation_limit, activation_limit)
    return activation(activation_alpha * gate) / activation_alpha * (up + up_offset)


def _in_best_groups(ranked: Tensor, num_groups: int, top_groups: int, group_scoring: str) -> Tensor:
    """``ranked`` with minus infinity outside of each token's best groups of consecutive experts."""
    groups = ranked.unflatten(1, (num_groups, -1))
    best = groups.amax(dim=-1) if group_scoring == "max" else groups.topk(2, dim=-1).values.sum(dim=-1)
    left_out = torch.ones_like(best, dtype=torch.bool).scatter(1, best.topk(top_groups, dim=-1).indices, False)
    return groups.masked_fill(left_out[..., None], float("-inf")).flatten(1)


def _by_panels(inner: int) -> Tensor:
    """int64 ``[2 * inner]``: gate and up rows as :class:`Panels` has them. The last panel may be narrower."""
    features = torch.arange(inner).split(PANEL)
    return torch.cat([part for each in features for part in (each, each + inner)])
