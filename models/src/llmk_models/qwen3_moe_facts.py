"""Reads the shape and facts of Qwen3-MoE from ``config.json``. Imports no torch."""

from __future__ import annotations

from llmk.api import Checkpoint, ModelFacts
from llmk_models.config import checked
from llmk_models.decoder_facts import DecoderShape, Family
from llmk_models.moe_facts import MoEShape, moe_facts, qwen_moe_shape

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, windows="all switched", num_kv_heads=4)
"""These and the following numbers are the defaults of transformers' config class."""


@checked
def shape_of(checkpoint: Checkpoint) -> MoEShape:
    """Sizes and options of a Qwen3-MoE checkpoint. Raises CheckpointError."""
    decoder = DecoderShape.of(checkpoint, FAMILY)
    return qwen_moe_shape(checkpoint, decoder, num_experts=128, top_k=8, intermediate_size=768, renormalize=False)


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Qwen3-MoE checkpoint."""
    return moe_facts(checkpoint, shape_of(checkpoint))
