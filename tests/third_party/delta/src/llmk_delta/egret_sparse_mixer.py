"""Mixtures of experts with the sparse mixer of Phi-3.5-MoE (arXiv:2310.00811) besides the usual routing.

Each chosen expert of a token writes into a place of its own, so that the weighted sum is a sum over ``top_k`` places
rather than a scattered one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def prepare(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices with their inputs first, ``gate_up`` ``[E, H, 2 * I]`` and ``down`` ``[E, I, H]``, and biases as they
    are."""
    turned = ("gate_up", "down")
    return {
        name: tensor.transpose(1, 2).contiguous() if name in turned else tensor for name, tensor in parameters.items()
    }


def sparse_mixer_moe(
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
    sparsemixer_eps: float | None = None,
) -> Tensor:
    """The weighted sum of the ``top_k`` experts of each token, ``[T, H]`` in ``x``'s dtype.

    Args:
        x: ``[T, H]``; not changed.
        router_logits: ``[T, E]``; scored in float32.
        weights: what :func:`prepare` returned.
        sparsemixer_eps: with it, experts are routed as :func:`_mix_sparsely` says.
        top_k, renormalize, activation, scoring, selection_bias, scaling, num_groups, top_groups, group_scoring: as
            :func:`llmk.reference.moe.fused_moe` has them.
    """
    logits = router_logits.float()
    if sparsemixer_eps is None:
        scores = torch.softmax(logits, dim=-1) if scoring == "softmax" else torch.sigmoid(logits)
        ranked = scores if selection_bias is None else scores + selection_bias.float()
        if top_groups < num_groups:
            ranked = _within_groups(ranked, num_groups, top_groups, group_scoring)
        experts = ranked.topk(top_k, dim=-1).indices
        shares = scores.gather(1, experts)
    else:
        shares, experts = _mix_sparsely(logits, top_k, sparsemixer_eps, selection_bias)
    if renormalize:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    places = _run_experts(x, experts, weights, _ACTIVATIONS[activation])
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for place in range(top_k):
        total.addcmul_(places[:, place].float(), shares[:, place, None] * scaling)
    return total.to(x.dtype)


def _within_groups(ranked: Tensor, num_groups: int, top_groups: int, group_scoring: str) -> Tensor:
    """``ranked`` (``[T, E]``) with minus infinity outside of each token's ``top_groups`` best groups."""
    groups = ranked.unflatten(1, (num_groups, -1))
    best_of_each = groups.topk(1 if group_scoring == "max" else 2, dim=-1).values.sum(dim=-1)
    chosen = best_of_each.topk(top_groups, dim=-1).indices
    left_out = torch.ones_like(best_of_each, dtype=torch.bool).scatter_(1, chosen, False)
    return groups.masked_fill(left_out[:, :, None], float("-inf")).flatten(1)


def _mix_sparsely(logits: Tensor, top_k: int, eps: float, selection_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The experts of the greatest logits, one after the other, float32 and int64 ``[T, top_k]``.

    The weight of an expert is its share in the softmax of the logits near its own, of experts that were not chosen
    before. Near are those which lie less than ``2 * eps`` below it, relative to the greater of its logit and their
    magnitude. A ``selection_bias`` is added to choose experts, and nowhere else.
    """
    shares, experts = [], []
    left = logits
    for _ in range(top_k):
        ranked = left if selection_bias is None else left + selection_bias.float()
        expert = ranked.argmax(dim=-1, keepdim=True)
        own = logits.gather(1, expert)
        far = (own - logits) / torch.maximum(logits.abs(), own) > 2 * eps
        shares.append(torch.softmax(left.masked_fill(far, float("-inf")), dim=-1).gather(1, expert))
        experts.append(expert)
        left = left.scatter(1, expert, float("-inf"))
    return torch.cat(shares, dim=-1), torch.cat(experts, dim=-1)


def _run_experts(
    x: Tensor, experts: Tensor, weights: Mapping[str, Tensor], activate: Callable[[Tensor], Tensor]
) -> Tensor:
    """What each expert returns for each token that chose it, ``[T, top_k, H]`` in ``x``'s dtype."""
    gate_up, down = weights["gate_up"], weights["down"]
    gate_up_bias, down_bias = weights.get("gate_up_bias"), weights.get("down_bias")
    count, top_k = experts.shape
    places = x.new_empty(count * top_k, x.shape[1])
    order = experts.flatten().argsort(stable=True)
    tokens = order // top_k
    start = 0
    for expert, chosen in enumerate(torch.bincount(experts.flatten(), minlength=gate_up.shape[0]).tolist()):
        if chosen:
            rows = slice(start, start + chosen)
            start += chosen
            features = _multiply(x[tokens[rows]], gate_up, gate_up_bias, expert)
            gate, up = features.chunk(2, dim=-1)
            places[order[rows]] = _multiply(activate(gate) * up, down, down_bias, expert)
    return places.view(count, top_k, x.shape[1])


def _multiply(rows: Tensor, matrices: Tensor, biases: Tensor | None, expert: int) -> Tensor:
    """``rows @ matrices[expert]``, plus the expert's bias, if there is any."""
    return rows @ matrices[expert] if biases is None else torch.addmm(biases[expert], rows, matrices[expert])
