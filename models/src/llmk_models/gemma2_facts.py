"""Reads the shape and facts of Gemma 2 from ``config.json``. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmk.api import Checkpoint, CheckpointError, ModelFacts
from llmk.nn.facts import mlp_linears, mlp_op, sandwich_norm_ops, scaled_embedding_op, softcap_op
from llmk_models.config import checked
from llmk_models.decoder_facts import DecoderShape, Family, decoder_facts

FAMILY = Family(
    bias_flags=("attention_bias",),
    windows="alternating",
    head_dim=256,
    num_kv_heads=4,
    tied=True,
    activation_key="hidden_activation",
    activations=("gelu_pytorch_tanh",),
)
"""These and the following numbers are the defaults of transformers' config class."""


@dataclass(frozen=True, slots=True)
class Gemma2Shape:
    """Sizes and options of one checkpoint. ``logit_softcap`` is the soft cap of the logits."""

    decoder: DecoderShape
    logit_softcap: float | None

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once. Every block also has a norm after it."""
        decoder = self.decoder
        layer = decoder.attention_parameters + decoder.mlp_parameters + 2 * decoder.hidden_size
        return decoder.table_parameters + decoder.num_layers * layer


@checked
def shape_of(checkpoint: Checkpoint) -> Gemma2Shape:
    """Sizes and options of a Gemma 2 checkpoint. Raises CheckpointError."""
    config = checkpoint.config
    if config.get("use_bidirectional_attention"):
        raise CheckpointError(
            f"{checkpoint.architecture} with use_bidirectional_attention: it does not generate text from left to right",
            hint="serve a causal language model",
        )
    decoder = replace(
        DecoderShape.of(checkpoint, FAMILY),
        softcap=config.get("attn_logit_softcapping", 50.0),
        scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
    )
    return Gemma2Shape(decoder, config.get("final_logit_softcapping", 30.0))


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Gemma 2 checkpoint."""
    shape = shape_of(checkpoint)
    decoder, cap = shape.decoder, shape.logit_softcap
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    return decoder_facts(
        checkpoint,
        decoder,
        num_parameters=shape.num_parameters,
        linear=mlp_linears(hidden, inner, bias=decoder.mlp_bias, count=decoder.num_layers),
        common_ops=(scaled_embedding_op(decoder.vocab_size, hidden), *sandwich_norm_ops(hidden)),
        ops=(mlp_op(inner, "gelu_tanh"), *([] if cap is None else [softcap_op(decoder.vocab_size)])),
    )
