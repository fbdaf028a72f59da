"""Reads the shape and facts of the dense Llama family from ``config.json``. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from llmk.api import Checkpoint, ModelFacts
from llmk.nn.facts import mlp_linears, normed_mlp_op
from llmk_models.config import checked
from llmk_models.decoder_facts import DecoderShape, Family, decoder_facts

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(bias_flags=("attention_bias", "mlp_bias")),
    "MistralForCausalLM": Family(windows="all", num_kv_heads=8),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows="switched", num_kv_heads=32),
    "Qwen3ForCausalLM": Family(
        bias_flags=("attention_bias",), qk_norm=True, windows="switched", head_dim=128, num_kv_heads=32
    ),
}
"""By architecture; the numbers are the defaults of transformers' config classes."""


@checked
def shape_of(checkpoint: Checkpoint) -> DecoderShape:
    """Sizes and options of a Llama, Mistral, Qwen2 or Qwen3 checkpoint. Raises CheckpointError."""
    return DecoderShape.of(checkpoint, FAMILIES[checkpoint.architecture])


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Llama, Mistral, Qwen2 or Qwen3 checkpoint."""
    shape = shape_of(checkpoint)
    hidden, inner, count = shape.hidden_size, shape.intermediate_size, shape.num_layers
    return decoder_facts(
        checkpoint,
        shape,
        num_parameters=shape.table_parameters + count * (shape.attention_parameters + shape.mlp_parameters),
        linear=mlp_linears(hidden, inner, bias=shape.mlp_bias, count=count),
        ops=(normed_mlp_op(hidden, inner),),
    )
