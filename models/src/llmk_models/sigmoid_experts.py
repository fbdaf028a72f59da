"""Experts that are chosen by sigmoid scores with a bias, alongside shared ones (DeepSeek-V3,
arXiv:2412.19437)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmk.api import MoEFacts
from llmk.tree import Block, MoE
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Parts


def sigmoid_experts(
    parts: Parts,
    *,
    num_experts: int,
    top_k: int,
    dense: int,
    shared: int,
    renormalize: bool = True,
    scaling: float = 1.0,
    groups: tuple[int, int] = (1, 1),
    inner_size: int = 1408,
    shared_name: str = "shared_experts",
    block_name: str = "",
    biased: bool = True,
    **names: Any,
) -> Callable[[int, str], Block]:
    """What makes a layer's feed-forward block by its index and its name: an MLP in the first ``dense`` layers, or as
    ``mlp_layer_types`` says, experts in the others. Numbers not in the config are the given ones; ``shared`` is that of
    shared experts, which the checkpoint calls ``shared_name``; ``block_name`` is the last part of the name of blocks
    with experts, where it is another than of those without, and each kind may be stored under the other's;
    ``biased``: whether a bias takes part in the choice; ``names`` are arguments of :meth:`llmk.tree.MoE.of`."""
    config = parts.config
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("n_routed_experts", num_experts, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", top_k),
        hidden_size=parts.hidden_size,
        intermediate_size=config.size("moe_intermediate_size", inner_size),
        renormalize=config.flag("norm_topk_prob", renormalize),
        scoring="sigmoid",
        selection_bias=biased,
        scaling=config.number("routed_scaling_factor", scaling),
        num_groups=config.size("n_group", groups[0]),
        top_groups=config.size("topk_group", groups[1]),
        group_scoring="top2_sum",
    )
    kinds = config.texts("mlp_layer_types")
    if kinds and len(kinds) != parts.num_layers:
        raise config.refuse(f"num_hidden_layers = {parts.num_layers}, but mlp_layer_types of {len(kinds)} layers")
    first = config.count("first_k_dense_replace", dense)
    is_dense = [kind == "dense" for kind in kinds] or [index < first for index in range(parts.num_layers)]
    shared_size = experts.intermediate_size * config.count("n_shared_experts", shared)

    def feed_forward(index: int, at: str) -> Block:
        other = (f"{at.rpartition('.')[0]}.{block_name}",) if block_name else ()
        if index < len(is_dense) and is_dense[index]:  # heads that predict further tokens have experts
            return parts.mlp(at, aliases=other)
        at, aliases = (other[0], (at,)) if other else (at, ())
        own: dict[str, Any] = {"prefix": "shared_", "partial": True}
        own["aliases"] = tuple(f"{alias}.{shared_name}" for alias in aliases)
        mlp = parts.mlp(f"{at}.{shared_name}", shared_size, **own) if shared_size else None
        return MoE.of(at, experts, shared=mlp, aliases=aliases, **names)

    return feed_forward
