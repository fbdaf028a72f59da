"""The shape and facts that decoders with MoE layers share. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmk.api import Checkpoint, LinearFacts, ModelFacts, MoEFacts, OpFacts
from llmk.nn.facts import mlp_linears, mlp_op, normed_mlp_op, normed_router_op, router_linear
from llmk_models.decoder_facts import DecoderShape, decoder_facts
from llmk_models.modules import where


@dataclass(frozen=True, slots=True)
class MoEShape:
    """Sizes and options of one checkpoint.

    ``decoder`` describes everything but the experts, ``experts`` the MoE block (its ``count`` is the number of MoE
    layers); ``sparse`` says for every layer whether it is a MoE layer. ``shared_size`` is the inner size of the shared
    expert, 0 if there is none.
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


def qwen_moe_shape(
    checkpoint: Checkpoint,
    decoder: DecoderShape,
    *,
    num_experts: int,
    top_k: int,
    intermediate_size: int,
    renormalize: bool,
) -> MoEShape:
    """The MoE shape of a Qwen decoder. Sizes are from the config, else the given defaults.

    Every ``decoder_sparse_step``-th layer has experts, except those in ``mlp_only_layers``. The number of experts is
    read under its old name, or the name that transformers 5 writes.
    """
    config = checkpoint.config
    num_experts = config.get("num_experts", config.get("num_local_experts", num_experts))
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    sparse = tuple(
        num_experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in range(decoder.num_layers)
    )
    experts = MoEFacts(
        site="moe",
        num_experts=num_experts,
        top_k=config.get("num_experts_per_tok", top_k),
        hidden_size=decoder.hidden_size,
        intermediate_size=config.get("moe_intermediate_size", intermediate_size),
        renormalize=bool(config.get("norm_topk_prob", renormalize)),
        count=sum(sparse),
    )
    return MoEShape(decoder, experts, sparse)


def with_expert_modules(
    experts: MoEFacts,
    sparse: Sequence[bool],
    block: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> MoEFacts:
    """``experts`` with the names of their modules in layers that are ``sparse``."""
    prefixes = (f"model.layers.{layer}.{block}.experts.0" for layer in where(sparse))
    return replace(experts, modules=tuple(tuple(f"{prefix}.{name}" for name in names) for prefix in prefixes))


def moe_facts(
    checkpoint: Checkpoint,
    shape: MoEShape,
    *,
    block: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> ModelFacts:
    """The facts of a checkpoint with MoE layers. Only kinds of layer that it has get sites. ``block`` and ``names`` are
    the checkpoint's names of a layer's MoE block and of an expert's projections."""
    decoder, experts = shape.decoder, with_expert_modules(shape.experts, shape.sparse, block, names)
    linear: list[LinearFacts] = []
    ops: list[OpFacts] = []
    for prefix, size, count in (
        ("", decoder.intermediate_size, shape.sparse.count(False)),
        ("shared_", shape.shared_size, experts.count),
    ):
        if size and count:
            linear += mlp_linears(decoder.hidden_size, size, bias=decoder.mlp_bias, count=count, prefix=prefix)
            ops.append(mlp_op(size, prefix=prefix) if prefix else normed_mlp_op(decoder.hidden_size, size))
    if experts.count:
        linear.append(router_linear(experts))
        ops.append(normed_router_op(experts))
    return decoder_facts(
        checkpoint,
        decoder,
        num_parameters=shape.num_parameters,
        linear=linear,
        moe=(experts,) if experts.count else (),
        ops=ops,
        sparse=shape.sparse,
    )
