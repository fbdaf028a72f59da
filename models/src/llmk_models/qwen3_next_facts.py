"""Reads the shape and facts of Qwen3-Next from ``config.json``. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmk.api import AttentionFacts, Checkpoint, CheckpointError, LinearFacts, ModelFacts, OpFacts
from llmk.nn.facts import (
    DeltaNetSizes,
    attention_op,
    embedding_op,
    head_linear,
    mlp_linears,
    mlp_op,
    norm_ops,
    recurrent_site,
    router_linear,
    sigmoid_gate_op,
)
from llmk_models.config import checked, checkpoint_dtype
from llmk_models.decoder_facts import DecoderShape, Family
from llmk_models.modules import ATTENTION, DENSE, Modules, shared, where, with_modules
from llmk_models.moe_facts import MoEShape, qwen_moe_shape, with_expert_modules

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, head_dim=256, num_kv_heads=2)
"""These and the following numbers are the defaults of transformers' config class."""

SHARED = "shared_expert."
"""Prefix of the shared expert's sites."""

_ATTENDING, _RECURRENT = "full_attention", "linear_attention"


@dataclass(frozen=True, slots=True)
class Qwen3NextShape:
    """Sizes and options of one checkpoint.

    ``attends`` says for every layer whether it has full attention; the others have ``delta_net``. ``shared_size`` is
    the inner size of the shared expert of a MoE layer.
    """

    moe: MoEShape
    delta_net: DeltaNetSizes
    attends: tuple[bool, ...]
    shared_size: int

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections; the query projection also returns each head's gate."""
        queries, keys, values = self.moe.decoder.qkv_sizes
        return 2 * queries, keys, values

    @property
    def in_sizes(self) -> tuple[int, int]:
        """Rows of a recurrent layer's two input projections: the convolution's channels and the gate; and two values
        per head."""
        sizes = self.delta_net
        return sum(sizes.conv_parts) + sizes.num_heads * sizes.value_dim, 2 * sizes.num_heads

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        decoder, sizes, hidden = self.moe.decoder, self.delta_net, self.moe.decoder.hidden_size
        gates = decoder.qkv_sizes[0] * (hidden + decoder.qkv_bias)
        values = sizes.num_heads * sizes.value_dim
        recurrent = hidden * (sum(self.in_sizes) + values + 1) + sum(sizes.conv_parts) * sizes.conv_kernel
        recurrent += 2 * sizes.num_heads + sizes.value_dim
        mixers = {True: decoder.attention_parameters + gates, False: recurrent}
        shared = hidden * (3 * self.shared_size + 1) * self.moe.experts.count
        # The MoE decoder counts its own attention in every layer.
        others = self.moe.num_parameters - decoder.num_layers * decoder.attention_parameters
        return others + shared + sum(mixers[attends] for attends in self.attends)


@checked
def shape_of(checkpoint: Checkpoint) -> Qwen3NextShape:
    """Sizes and options of a Qwen3-Next checkpoint.

    Raises:
        CheckpointError: a size is missing, the native implementation does not support an option of the config, or a
            layer has an unknown type.
    """
    config = checkpoint.config
    decoder = DecoderShape.of(checkpoint, FAMILY)
    decoder = replace(decoder, rope={"partial_rotary_factor": 0.25, **decoder.rope})
    sizes = DeltaNetSizes(
        num_heads=config.get("linear_num_value_heads", 32),
        num_key_heads=config.get("linear_num_key_heads", 16),
        key_dim=config.get("linear_key_head_dim", 128),
        value_dim=config.get("linear_value_head_dim", 128),
        conv_kernel=config.get("linear_conv_kernel_dim", 4),
    )
    if sizes.num_heads % sizes.num_key_heads:
        raise CheckpointError(
            f"{checkpoint.architecture} with linear_num_value_heads = {sizes.num_heads}, which linear_num_key_heads = "
            f"{sizes.num_key_heads} does not divide",
            hint="compare the checkpoint's config.json with the one that the model's authors publish",
        )
    return Qwen3NextShape(
        moe=qwen_moe_shape(checkpoint, decoder, num_experts=512, top_k=10, intermediate_size=512, renormalize=True),
        delta_net=sizes,
        attends=_attends(checkpoint, decoder.num_layers),
        shared_size=config.get("shared_expert_intermediate_size", 512),
    )


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Qwen3-Next checkpoint. Only kinds of layer that it has get sites."""
    shape, dtype = shape_of(checkpoint), checkpoint_dtype(checkpoint.config)
    decoder, moe, hidden = shape.moe.decoder, shape.moe.experts, shape.moe.decoder.hidden_size
    num_recurrent = shape.attends.count(False)
    attention = _attention(shape)
    state, delta_op = recurrent_site(shape.delta_net, num_recurrent, dtype)
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="",  # filled in with the spec's id
        num_layers=decoder.num_layers,
        hidden_size=hidden,
        vocab_size=decoder.vocab_size,
        max_model_len=decoder.max_model_len,
        dtype=dtype,
        num_parameters=shape.num_parameters,
        attention=attention,
        recurrent=(state,) if num_recurrent else (),
        linear=with_modules(
            (*_linears(shape), head_linear(hidden, decoder.vocab_size)),
            (ATTENTION, where(shape.attends)),
            (_DELTA, where(shape.attends, False)),
            (DENSE, where(shape.moe.sparse, False)),
            (shared(SHARED, "mlp.shared_expert"), where(shape.moe.sparse)),
        ),
        moe=(with_expert_modules(moe, shape.moe.sparse),) if moe.count else (),
        ops=(
            embedding_op(decoder.vocab_size, hidden),
            *norm_ops(hidden, "rms_norm_plus_one", "add_rms_norm_plus_one"),
            *_ops(shape, attention),
            *((delta_op,) if num_recurrent else ()),
        ),
        parallel=("tensor", "pipeline"),
    )


def _attends(checkpoint: Checkpoint, num_layers: int) -> tuple[bool, ...]:
    """By default, every ``full_attention_interval``-th layer has attention; ``layer_types`` overrides that."""
    every = checkpoint.config.get("full_attention_interval", 4)
    default = [_RECURRENT if (layer + 1) % every else _ATTENDING for layer in range(num_layers)]
    types = checkpoint.config.get("layer_types") or default
    if len(types) != num_layers or set(types) - {_ATTENDING, _RECURRENT}:
        raise CheckpointError(
            f"{checkpoint.architecture} with num_hidden_layers = {num_layers} and layer_types of {len(types)} layers, "
            f"of kinds {', '.join(sorted(set(types)))}: each of the layers is {_ATTENDING} or {_RECURRENT}",
            hint="compare the checkpoint's config.json with the one that the model's authors publish",
        )
    return tuple(kind == _ATTENDING for kind in types)


def _attention(shape: Qwen3NextShape) -> tuple[AttentionFacts, ...]:
    count = shape.attends.count(True)
    return tuple(replace(facts, num_layers=count) for facts in shape.moe.decoder.attention_facts() if count)


_DELTA: Modules = {"delta_in": ("linear_attn.in_proj_qkvz",), "delta_out": ("linear_attn.out_proj",)}


def _linears(shape: Qwen3NextShape) -> Iterator[LinearFacts]:
    decoder, experts = shape.moe.decoder, shape.moe.experts
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    if count := shape.attends.count(True):
        qkv, out = decoder.attention_linears()
        sizes, heads = shape.qkv_sizes, decoder.qkv_heads
        units = tuple((number, size // number) for size, number in zip(sizes, heads, strict=True))
        yield replace(qkv, out_features=sum(sizes), units=units, count=count)
        yield replace(out, count=count)
    if count := shape.attends.count(False):
        net = shape.delta_net
        for site, rows, quantizable in zip(("delta_in", "delta_scalars"), shape.in_sizes, (True, False), strict=True):
            yield LinearFacts(
                site=site,
                in_features=hidden,
                out_features=rows,
                count=count,
                quantizable=quantizable,
                parallel="column",
                units=((net.units, rows // net.units),),
            )
        values = net.num_heads * net.value_dim
        yield LinearFacts(site="delta_out", in_features=values, out_features=hidden, count=count, parallel="row")
    if experts.count:
        yield router_linear(experts)
        yield from mlp_linears(hidden, shape.shared_size, bias=False, count=experts.count, prefix=SHARED)
        yield LinearFacts(
            site=f"{SHARED}gate", in_features=hidden, out_features=1, count=experts.count, quantizable=False
        )
    if count := shape.moe.sparse.count(False):
        yield from mlp_linears(hidden, inner, bias=False, count=count)


def _ops(shape: Qwen3NextShape, attention: tuple[AttentionFacts, ...]) -> Iterator[OpFacts]:
    decoder = shape.moe.decoder
    for facts in attention:
        yield attention_op(facts, qk_norm=True, rotary_dim=decoder.rotary_dim, plus_one=True)
        yield sigmoid_gate_op("attention_gate", decoder.qkv_sizes[0], decoder.qkv_sizes[0], by_heads=True)
    if shape.moe.experts.count:
        yield mlp_op(shape.shared_size, prefix=SHARED)
        yield sigmoid_gate_op(f"{SHARED}sigmoid_gate", decoder.hidden_size, 1)
    if False in shape.moe.sparse:
        yield mlp_op(decoder.intermediate_size)
