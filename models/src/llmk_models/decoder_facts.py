"""Reads the shape of a Llama-like decoder from ``config.json``: the part that dense and sparse families share.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmk.api import AttentionFacts, Checkpoint, CheckpointError, LinearFacts, ModelFacts, MoEFacts, OpFacts
from llmk.nn.facts import attention_op, embedding_op, head_linear, norm_ops, normed_linear_op
from llmk_models.config import (
    checkpoint_dtype,
    context_length,
    default_length,
    head_size,
    layer_windows,
    required,
    rope_parameters,
    shared_heads,
)
from llmk_models.modules import ATTENTION, DENSE, Modules, shared, where, with_modules


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of an architecture that its config does not state.

    ``qkv_bias`` and ``qk_norm`` are properties of the architecture, ``bias_flags`` the config's options that it reads.
    ``windows``: which layers have a sliding window: ``"none"``, ``"all"``, those selected by ``use_sliding_window``
    (``"switched"``; or all if it is set, ``"all switched"``), or every other layer from the first (``"alternating"``).
    ``activations`` are the values of the config's ``activation_key`` that the native implementation supports, the
    default first. The other fields are defaults of the config's keys.
    """

    qkv_bias: bool = False
    bias_flags: tuple[str, ...] = ()
    qk_norm: bool = False
    windows: str = "none"
    window: int | None = 4096
    head_dim: int | None = None
    num_kv_heads: int | None = None
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tied: bool = False
    activation_key: str = "hidden_act"
    activations: tuple[str, ...] = ("silu", "swish")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Sizes and options of one checkpoint. ``windows`` has one entry per layer; ``softcap`` and ``scale`` are those of
    its attention."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    windows: tuple[int | None, ...]
    rope: Mapping[str, Any]
    max_position: int
    softcap: float | None = None
    scale: float | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, family: Family, **own: Any) -> Self:
        """Reads a checkpoint's config; ``own`` are further fields of a subclass. Raises
        :class:`~llmk.api.CheckpointError` for options that the family does not support."""
        config = checkpoint.config
        activation = config.get(family.activation_key, family.activations[0])
        if activation not in family.activations:
            raise CheckpointError(
                f"{checkpoint.architecture} with {family.activation_key} = {activation!r}: "
                f"the native implementation has {family.activations[0]} only",
                hint="serve it through transformers: --select.model.use models.transformers",
            )
        num_layers, num_heads = required(checkpoint, "num_hidden_layers"), required(checkpoint, "num_attention_heads")
        hidden_size = required(checkpoint, "hidden_size")
        attention_bias = "attention_bias" in family.bias_flags and bool(config.get("attention_bias", False))
        return cls(
            hidden_size=hidden_size,
            intermediate_size=required(checkpoint, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=shared_heads(
                checkpoint, num_heads, _or(config.get("num_key_value_heads", family.num_kv_heads), num_heads)
            ),
            head_dim=head_size(checkpoint, config.get("head_dim", family.head_dim), hidden_size, num_heads),
            vocab_size=required(checkpoint, "vocab_size"),
            norm_eps=config.get("rms_norm_eps", family.norm_eps),
            qkv_bias=family.qkv_bias or attention_bias,
            out_bias=attention_bias,
            mlp_bias="mlp_bias" in family.bias_flags and bool(config.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
            tied=bool(config.get("tie_word_embeddings", family.tied)),
            windows=_windows(config, family, num_layers),
            rope=rope_parameters(config, family.rope_theta),
            max_position=required(checkpoint, "max_position_embeddings"),
            **own,
        )

    @property
    def rotary_dim(self) -> int:
        """Elements of a head with RoPE."""
        return int(self.head_dim * self.rope.get("partial_rotary_factor", 1.0))

    @property
    def max_model_len(self) -> int:
        """Maximum number of positions."""
        return context_length(self.max_position, self.rope)

    @property
    def qkv_heads(self) -> tuple[int, int, int]:
        """Heads of the query, key and value projections."""
        return self.num_heads, self.num_kv_heads, self.num_kv_heads

    @property
    def qkv_sizes(self) -> tuple[int, ...]:
        """Rows of the query, key and value projections."""
        return tuple(heads * self.head_dim for heads in self.qkv_heads)

    @property
    def table_parameters(self) -> int:
        """Elements of embedding, final norm and head (a tied table counts once)."""
        return self.vocab_size * self.hidden_size * (1 if self.tied else 2) + self.hidden_size

    @property
    def attention_parameters(self) -> int:
        """Elements of one layer's attention, and of the norm before it."""
        hidden, q_size, qkv_size = self.hidden_size, self.qkv_sizes[0], sum(self.qkv_sizes)
        projections = qkv_size * (hidden + self.qkv_bias) + hidden * (q_size + self.out_bias)
        return projections + 2 * self.head_dim * self.qk_norm + hidden

    @property
    def mlp_parameters(self) -> int:
        """Elements of one layer's dense feed-forward block, and of the norm before it."""
        return self.gated_parameters(self.intermediate_size) + self.hidden_size

    def gated_parameters(self, inner: int) -> int:
        """Elements of a dense feed-forward block that is ``inner`` wide."""
        return 3 * self.hidden_size * inner + (2 * inner + self.hidden_size) * self.mlp_bias

    def site(self, layer: int) -> str:
        """The attention site of a layer."""
        return "attention" if self.windows[layer] is None else "sliding_attention"

    def attention_facts(self) -> tuple[AttentionFacts, ...]:
        """One site for each kind of layer in the model."""
        sites = [self.site(layer) for layer in range(self.num_layers)]
        return tuple(
            AttentionFacts(
                site=site,
                num_layers=sites.count(site),
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                sliding_window=self.windows[sites.index(site)],
                softcap=self.softcap,
                scale=self.scale,
            )
            for site in dict.fromkeys(sites)
        )

    def attention_linears(self) -> tuple[LinearFacts, ...]:
        """The linear sites of attention."""
        hidden, count = self.hidden_size, self.num_layers
        q_size, qkv_size = self.qkv_sizes[0], sum(self.qkv_sizes)
        return (
            LinearFacts(
                site="qkv",
                in_features=hidden,
                out_features=qkv_size,
                bias=self.qkv_bias,
                count=count,
                parallel="column",
                units=tuple((heads, self.head_dim) for heads in self.qkv_heads),
            ),
            LinearFacts(
                site="out",
                in_features=q_size,
                out_features=hidden,
                bias=self.out_bias,
                count=count,
                parallel="row",
            ),
        )

    @property
    def attention_modules(self) -> Modules:
        """The modules of the linear sites of attention."""
        return ATTENTION

    def norm_ops(self) -> tuple[OpFacts, ...]:
        """The norms, including the one that is fused with the next linear layer."""
        return (*norm_ops(self.hidden_size), normed_linear_op("qkv", self.hidden_size))

    def attention_ops(self) -> tuple[OpFacts, ...]:
        """The ops of attention."""
        sites = self.attention_facts()
        return tuple(attention_op(facts, qk_norm=self.qk_norm, rotary_dim=self.rotary_dim) for facts in sites)


def decoder_facts(
    checkpoint: Checkpoint,
    shape: DecoderShape,
    *,
    num_parameters: int,
    linear: Sequence[LinearFacts] = (),
    moe: Sequence[MoEFacts] = (),
    ops: Sequence[OpFacts] = (),
    common_ops: Sequence[OpFacts] | None = None,
    sparse: Sequence[bool] = (),
) -> ModelFacts:
    """The facts of a decoder.

    Args:
        linear, moe, ops: the sites of its feed-forward blocks.
        common_ops: embedding and norms, if they differ from Llama's.
        sparse: for every layer, whether it has experts; empty: none has.
    """
    hidden = shape.hidden_size
    default_len, default_why = default_length(checkpoint.config, shape.max_model_len)
    if common_ops is None:
        common_ops = (embedding_op(shape.vocab_size, hidden), *shape.norm_ops())
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="",  # filled in with the spec's id
        num_layers=shape.num_layers,
        hidden_size=hidden,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_model_len,
        dtype=checkpoint_dtype(checkpoint.config),
        num_parameters=num_parameters,
        attention=shape.attention_facts(),
        linear=with_modules(
            (*shape.attention_linears(), *linear, head_linear(hidden, shape.vocab_size)),
            (shape.attention_modules, range(shape.num_layers)),
            (DENSE, where(sparse or (False,) * shape.num_layers, False)),
            (shared("shared_", "mlp.shared_experts"), where(sparse)),
        ),
        moe=tuple(moe),
        ops=(*common_ops, *shape.attention_ops(), *ops),
        parallel=("tensor", "pipeline"),
        default_model_len=default_len,
        default_why=default_why,
    )


def _windows(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window", family.window) or None
    switched = "switched" in family.windows
    if family.windows == "none" or (switched and not config.get("use_sliding_window", False)):
        return (None,) * num_layers
    if family.windows.startswith("all"):
        return (window,) * num_layers
    if family.windows == "alternating" and config.get("layer_types") is None:
        return tuple(None if layer % 2 else window for layer in range(num_layers))
    return layer_windows(config, num_layers, window, config.get("max_window_layers", 28))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
