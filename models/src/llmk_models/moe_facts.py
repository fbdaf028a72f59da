"""What a decoder with mixtures of experts looks like: what sparse families share. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from llmk.api import Checkpoint, LinearFacts, ModelFacts, MoEFacts, OpFacts
from llmk.nn.facts import mlp_linears, mlp_op, router_linear
from llmk_models.decoder_facts import DecoderShape, decoder_facts


@dataclass(frozen=True, slots=True)
class MoEShape:
    """Sizes and switches of one checkpoint.

    ``decoder`` describes what is not sparse, ``experts`` a sparse layer's block (its ``count`` is the number of such
    layers); ``sparse`` says of every layer whether it is one. ``shared_size`` is the width of what its tokens all pass
    through besides, 0 where there is no such thing.
    """

    decoder: DecoderShape
    experts: MoEFacts
    sparse: tuple[bool, ...]
    shared_size: int = 0

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        decoder, experts = self.decoder, self.experts
        hidden = decoder.hidden_size
        block = hidden + experts.num_experts * hidden * (1 + 3 * experts.intermediate_size)
        if self.shared_size:
            block += decoder.gated_parameters(self.shared_size)
        blocks = sum(block if sparse else decoder.mlp_parameters for sparse in self.sparse)
        return decoder.table_parameters + decoder.num_layers * decoder.attention_parameters + blocks


def moe_facts(checkpoint: Checkpoint, shape: MoEShape) -> ModelFacts:
    """The facts of a checkpoint with sparse layers. Kinds of layer that it lacks have no site."""
    decoder, experts = shape.decoder, shape.experts
    linear: list[LinearFacts] = []
    ops: list[OpFacts] = []
    for prefix, size, count in (
        ("", decoder.intermediate_size, shape.sparse.count(False)),
        ("shared_", shape.shared_size, experts.count),
    ):
        if size and count:
            linear += mlp_linears(decoder.hidden_size, size, bias=decoder.mlp_bias, count=count, prefix=prefix)
            ops.append(mlp_op(size, prefix=prefix))
    if experts.count:
        linear.append(router_linear(experts))
    return decoder_facts(
        checkpoint,
        decoder,
        num_parameters=shape.num_parameters,
        linear=linear,
        moe=(experts,) if experts.count else (),
        ops=ops,
    )
