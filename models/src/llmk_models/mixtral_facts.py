"""Reads the shape and facts of Mixtral from ``config.json``. Imports no torch."""

from __future__ import annotations

from llmk.api import Checkpoint, ModelFacts, MoEFacts
from llmk_models.config import checked
from llmk_models.decoder_facts import DecoderShape, Family
from llmk_models.moe_facts import MoEShape, moe_facts

FAMILY = Family(windows="all", window=None, num_kv_heads=8, norm_eps=1e-5, rope_theta=1e6)
"""The numbers are the defaults of transformers' config class."""


EXPERT_PARTS = ("w1", "w3", "w2")
"""The checkpoint's names of an expert's gate, up and down projections."""


@checked
def shape_of(checkpoint: Checkpoint) -> MoEShape:
    """Sizes and options of a Mixtral checkpoint: experts in every layer. Raises CheckpointError."""
    decoder = DecoderShape.of(checkpoint, FAMILY)
    experts = MoEFacts(
        site="moe",
        num_experts=checkpoint.config.get("num_local_experts", 8),
        top_k=checkpoint.config.get("num_experts_per_tok", 2),
        hidden_size=decoder.hidden_size,
        intermediate_size=decoder.intermediate_size,
        count=decoder.num_layers,
    )
    return MoEShape(decoder, experts, (True,) * decoder.num_layers)


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Mixtral checkpoint."""
    return moe_facts(checkpoint, shape_of(checkpoint), block="block_sparse_moe", names=EXPERT_PARTS)
