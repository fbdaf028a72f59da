"""What Qwen3-MoE looks like, read from ``config.json``. Imports no torch."""

from __future__ import annotations

from llmk.api import Checkpoint, ModelFacts, MoEFacts
from llmk_models.decoder_facts import DecoderShape, Family
from llmk_models.moe_facts import MoEShape, moe_facts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, windows="all switched", num_kv_heads=4)
"""The numbers are the defaults of transformers' config class."""


def shape_of(checkpoint: Checkpoint) -> MoEShape:
    """Sizes and switches of a Qwen3-MoE checkpoint. Raises CheckpointError.

    Every ``decoder_sparse_step``-th layer has experts, but for those in ``mlp_only_layers``. The number of experts
    stands under its old name, or under the one that transformers 5 writes.
    """
    config, decoder = checkpoint.config, DecoderShape.of(checkpoint, FAMILY)
    num_experts = config.get("num_experts", config.get("num_local_experts", 128))
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    sparse = tuple(
        num_experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in range(decoder.num_layers)
    )
    experts = MoEFacts(
        site="moe",
        num_experts=num_experts,
        top_k=config.get("num_experts_per_tok", 8),
        hidden_size=decoder.hidden_size,
        intermediate_size=config.get("moe_intermediate_size", 768),
        renormalize=bool(config.get("norm_topk_prob", False)),
        count=sum(sparse),
    )
    return MoEShape(decoder, experts, sparse)


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Qwen3-MoE checkpoint."""
    return moe_facts(checkpoint, shape_of(checkpoint))
