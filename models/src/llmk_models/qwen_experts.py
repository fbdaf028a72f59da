"""The experts of Qwen's families."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Parts


def qwen_experts(
    parts: Parts, *, num_experts: int, top_k: int, inner_size: int, renormalize: bool
) -> tuple[MoEFacts, tuple[bool, ...]]:
    """The facts of the experts, and for each layer whether it has them. Sizes not in the config are the given ones.

    Every ``decoder_sparse_step``-th layer has experts, except those in ``mlp_only_layers``. The number of experts is
    read under its old name, or the name that transformers 5 writes.
    """
    config = parts.config
    num_experts = config.count("num_local_experts", num_experts, most=MOST_EXPERTS)
    num_experts = config.count("num_experts", num_experts, most=MOST_EXPERTS)
    step, dense = config.size("decoder_sparse_step", 1), config.counts("mlp_only_layers")
    sparse = (num_experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in range(parts.num_layers))
    experts = MoEFacts(
        site="moe",
        num_experts=num_experts,
        top_k=config.size("num_experts_per_tok", top_k),
        hidden_size=parts.hidden_size,
        intermediate_size=config.size("moe_intermediate_size", inner_size),
        renormalize=config.flag("norm_topk_prob", renormalize),
    )
    return experts, tuple(sparse)
