"""Mixture of experts by a loop over the experts that tokens chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.activations import ACTIVATIONS, INVARIANT_ACTIVATIONS, GatedOptions, activate
from llmk.reference.linear import linear_dequantized, linear_invariant
from llmk.reference.quantized_weight import (
    GroupedWeight,
    PackedWeight,
    ScaledWeight,
    prepare_fp8_block,
    prepare_fp8_channel,
    prepare_int4_group,
    prepare_int8_channel,
    prepare_int8_group,
)
from llmk.reference.tiles import TiledWeight, tiled

SCORINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    # Not torch.sigmoid, which computes the last elements of a tensor by other code than the rest, so rows would depend
    # on the batch.
    "sigmoid": lambda logits: 1 / (1 + torch.exp(-logits)),
}
_GROUP_SCORING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "max": lambda scores: scores.amax(dim=-1),
    "top2_sum": lambda scores: scores.topk(2, dim=-1).values.sum(dim=-1),
}


Weight = TypeVar("Weight", TiledWeight, ScaledWeight, GroupedWeight, PackedWeight)
Activation = Callable[..., Tensor]
Scoring = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class MoEExamples:
    """The ``KernelSpec.examples`` of a MoE kernel: what the kernel supports but the core does not define. The
    conformance kit compares the kernel with it.

    ``activations`` maps a name, as in :class:`~llmk.api.MoEFacts`, to a function from the gate and up features ``[...,
    2 * I]``, gate first, to ``[..., I]`` in the same dtype. One whose kernel knows the query's ``activation_alpha``,
    ``activation_limit`` or ``up_offset`` gets them as keyword arguments where they are not at their default.

    ``scorings`` maps a name to a function from router logits, float32 ``[T, E]``, to scores. ``facts`` are values of
    ``MoEFacts.facts`` that the kernel serves, and ``oracle`` is called as :func:`fused_moe` for queries that have
    facts, with each as a keyword argument; ``activation`` and ``scoring`` are names of the core's, or the functions of
    this object.
    """

    activations: Mapping[str, Activation] = field(default_factory=dict)
    scorings: Mapping[str, Scoring] = field(default_factory=dict)
    facts: Sequence[Mapping[str, Any]] = ()
    oracle: Callable[..., Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Experts(Generic[Weight]):
    """The weights of each expert, and the biases of all experts, if any."""

    gate_up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


def fused_moe(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    top_k: int,
    renormalize: bool,
    activation: str | Activation = "silu",
    scoring: str | Scoring = "softmax",
    selection_bias: Tensor | None = None,
    scaling: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
    gated: bool = True,
    router_softcap: float | None = None,
    **gated_options: Unpack[GatedOptions],
) -> Tensor:
    """Routes every token to its ``top_k`` experts, and returns the weighted sum of their outputs. ``x`` is not changed.

    Synchronizes once per call to read the number of tokens of each expert, so experts without tokens cost nothing.

    Args:
        x: ``[T, H]``.
        router_logits: ``[T, E]``.
        weights: ``gate_up`` ``[E, 2 * I, H]``, gate rows before up rows, and ``down`` ``[E, H, I]``; if the experts
            have biases, ``gate_up_bias`` ``[E, 2 * I]`` and ``down_bias`` ``[E, H]``. Without gates, ``gate_up`` has
            the ``I`` up rows alone.
        renormalize, scoring, selection_bias, scaling, num_groups, top_groups, group_scoring, router_softcap: as in
            :func:`route`.
        activation: a name in :data:`llmk.reference.activations.ACTIVATIONS`, or without gates in
            :data:`llmk.reference.activations.PLAIN_ACTIVATIONS`; or a function.
        gated: whether the experts have gates.
        gated_options: parameters of the activation.

    Returns:
        ``[T, H]`` in ``x``'s dtype; the weighted sum is float32.
    """
    gate_up, down = weights["gate_up"], weights["down"]
    gate_up_bias, down_bias = weights.get("gate_up_bias"), weights.get("down_bias")
    own = activation if callable(activation) else _activation(activation, ACTIVATIONS, gated=gated)

    def compute(expert: int, rows: Tensor) -> Tensor:
        features = F.linear(rows, gate_up[expert], _expert_bias(gate_up_bias, expert))
        return F.linear(own(features, **gated_options), down[expert], _expert_bias(down_bias, expert))

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
        router_softcap=router_softcap,
    )
    return _mix(x, shares, experts, gate_up.shape[0], compute)


def fused_moe_invariant(x: Tensor, router_logits: Tensor, weights: Experts[TiledWeight], **options: Any) -> Tensor:
    """Batch-invariant :func:`fused_moe`: each expert computes its tokens in tiles (:mod:`llmk.reference.tiles`), so a
    token's result is bit-identical in any batch. ``weights`` are the result of :func:`prepare_invariant`."""
    return _by_tiles(linear_invariant, x, router_logits, weights, **options)


def fused_moe_dequantized(
    x: Tensor,
    router_logits: Tensor,
    weights: Experts[ScaledWeight] | Experts[PackedWeight],
    **options: Any,
) -> Tensor:
    """:func:`fused_moe_invariant` with an expert's weights dequantized to ``x``'s dtype in each call in which it has
    tokens."""
    return _by_tiles(linear_dequantized, x, router_logits, weights, **options)


def _by_tiles(
    multiply: Callable[..., Tensor],
    x: Tensor,
    router_logits: Tensor,
    weights: Experts[Any],
    *,
    activation: str = "silu",
    gated: bool = True,
    **options: Any,
) -> Tensor:
    gated_options = {name: value for name, value in options.items() if name in GatedOptions.__annotations__}
    routing = {name: value for name, value in options.items() if name not in gated_options}
    own = _activation(activation, INVARIANT_ACTIVATIONS, gated=gated)

    def compute(expert: int, rows: Tensor) -> Tensor:
        features = multiply(rows, weights.gate_up[expert], _expert_bias(weights.gate_up_bias, expert))
        return multiply(own(features, **gated_options), weights.down[expert], _expert_bias(weights.down_bias, expert))

    return _mix(x, *route(router_logits, **routing), len(weights.gate_up), compute)


def _activation(name: str, gating: Mapping[str, Activation], *, gated: bool) -> Activation:
    return gating[name] if gated else partial(activate, activation=name)


def prepare_moe_int8_channel(parameters: Mapping[str, Tensor]) -> Experts[ScaledWeight]:
    """Parameters as :func:`fused_moe` takes them, in int8, and ``gate_up_scale`` ``[E, 2 * I, 1]`` and ``down_scale``
    ``[E, H, 1]``."""
    return _prepared(prepare_int8_channel, parameters)


def prepare_moe_int8_group(parameters: Mapping[str, Tensor]) -> Experts[GroupedWeight]:
    """Parameters as :func:`fused_moe` takes them, in int8, and ``gate_up_scale`` ``[E, 2 * I, groups]`` and
    ``down_scale`` ``[E, H, groups]``, and optionally zero points like scales."""
    return _prepared(prepare_int8_group, parameters)


def prepare_moe_int4_group(parameters: Mapping[str, Tensor]) -> Experts[PackedWeight]:
    """``gate_up_packed`` uint8 ``[E, 2 * I, H / 2]``, ``gate_up_scale`` ``[E, 2 * I, groups]``, ``down_packed``
    ``[E, H, I / 2]``, ``down_scale`` ``[E, H, groups]``, and optionally zero points like scales."""
    return _prepared(prepare_int4_group, parameters)


def prepare_moe_fp8_channel(parameters: Mapping[str, Tensor]) -> Experts[ScaledWeight]:
    """Parameters as :func:`fused_moe` takes them, in fp8, and ``gate_up_scale`` ``[E, 2 * I, 1]`` and ``down_scale``
    ``[E, H, 1]``."""
    return _prepared(prepare_fp8_channel, parameters)


def prepare_moe_fp8_block(parameters: Mapping[str, Tensor]) -> Experts[ScaledWeight]:
    """Parameters as :func:`fused_moe` takes them, in fp8, and ``gate_up_scale`` ``[E, ceil(2 * I / 128), ceil(H /
    128)]`` and ``down_scale`` ``[E, ceil(H / 128), ceil(I / 128)]``."""
    return _prepared(prepare_fp8_block, parameters)


def _prepared(prepare: Callable[[Mapping[str, Tensor]], Weight], parameters: Mapping[str, Tensor]) -> Experts[Weight]:
    """Prepares each expert's weights."""

    def experts(name: str) -> tuple[Weight, ...]:
        names = [key for key in parameters if key.startswith(name)]
        stored = [f"weight{key.removeprefix(name)}" for key in names]
        each = zip(*(parameters[key] for key in names), strict=True)
        return tuple(prepare(dict(zip(stored, tensors, strict=True))) for tensors in each)

    biases = parameters.get("gate_up_bias"), parameters.get("down_bias")
    return Experts(experts("gate_up"), experts("down"), *biases)


def prepare_invariant(parameters: Mapping[str, Tensor]) -> Experts[TiledWeight]:
    """Parameters as :func:`fused_moe` takes them, each expert's weights with the tile sizes that are batch-invariant
    for them."""
    return Experts(
        tuple(tiled(weight) for weight in parameters["gate_up"]),
        tuple(tiled(weight) for weight in parameters["down"]),
        parameters.get("gate_up_bias"),
        parameters.get("down_bias"),
    )


def route(
    router_logits: Tensor,
    top_k: int,
    *,
    renormalize: bool,
    scoring: str | Scoring = "softmax",
    selection_bias: Tensor | None = None,
    scaling: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
    router_softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The experts of each token, and their weights.

    Args:
        router_logits: ``[T, E]``; scored in float32.
        renormalize: whether the chosen weights are divided by their sum.
        scoring: ``"softmax"`` over all experts, ``"sigmoid"`` of each (DeepSeek-V3, arXiv:2412.19437), or a function.
        selection_bias: ``[E]``, added to the scores to choose experts, but not to the weights.
        scaling: multiplies the weights at the end.
        num_groups, top_groups: the experts consist of ``num_groups`` consecutive groups of equal size; a token chooses
            among the experts of its ``top_groups`` best groups (DeepSeek-V2, arXiv:2405.04434).
        group_scoring: a group's score is that of its best expert (``"max"``), or the sum of its two best
            (``"top2_sum"``, DeepSeek-V3).
        router_softcap: logits are first mapped to ``router_softcap * tanh(logits / router_softcap)`` (Grok-1).

    Returns:
        float32 ``[T, top_k]`` and int64 ``[T, top_k]``, best first.
    """
    logits = router_logits.float()
    if router_softcap is not None:
        # By exponentials, since torch.tanh computes the last elements of a tensor by other code than the rest.
        logits = router_softcap * (1 - 2 / (1 + torch.exp(2 * logits / router_softcap)))
    scores = (scoring if callable(scoring) else SCORINGS[scoring])(logits)
    ranked = scores if selection_bias is None else scores + selection_bias.float()
    if top_groups < num_groups:
        ranked = _within_best(ranked, num_groups, top_groups, group_scoring)
    experts = ranked.topk(top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * scaling, experts


def _within_best(ranked: Tensor, num_groups: int, top_groups: int, group_scoring: str) -> Tensor:
    """``ranked`` (``[T, E]``) with minus infinity in all groups except the best."""
    groups = ranked.unflatten(1, (num_groups, -1))
    best = _GROUP_SCORING[group_scoring](groups).topk(top_groups, dim=-1).indices
    best = best[..., None].expand(-1, -1, groups.shape[-1])
    return torch.full_like(groups, float("-inf")).scatter(1, best, groups.gather(1, best)).flatten(1)


def _mix(
    x: Tensor, shares: Tensor, experts: Tensor, num_experts: int, compute: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """The sum of ``compute(expert, rows)`` times the expert's weight over each token's experts, in the order of expert
    index."""
    order = experts.flatten().argsort(stable=True)
    tokens = order // experts.shape[1]
    shares = shares.flatten()[order]
    counts = torch.bincount(experts.flatten(), minlength=num_experts).tolist()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            chosen = slice(start, start + count)
            start += count
            result = compute(expert, x[tokens[chosen]])
            out.index_add_(0, tokens[chosen], result.float() * shares[chosen, None])
    return out.to(x.dtype)


def _expert_bias(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]
