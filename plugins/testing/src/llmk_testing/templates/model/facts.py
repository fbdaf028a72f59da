"""Reads a checkpoint's sizes, and the sites that need kernels, from its ``config.json``. It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmk.api import AttentionFacts, Checkpoint, CheckpointError, LinearFacts, ModelFacts
from llmk.nn.facts import attention_op, embedding_op, head_linear, mlp_linears, mlp_op, norm_ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes and options."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope_theta: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        hidden, inner, queries, rows = (
            self.hidden_size,
            self.intermediate_size,
            self.qkv_sizes[0],
            sum(self.qkv_sizes),
        )
        attention = rows * (hidden + self.qkv_bias) + hidden * (queries + self.out_bias)
        mlp = 3 * hidden * inner + (2 * inner + hidden) * self.mlp_bias
        tables = (1 if self.tied else 2) * self.vocab_size * hidden
        return tables + hidden + self.num_layers * (attention + mlp + 2 * hidden)


def shape_of(checkpoint: Checkpoint) -> Shape:
    """Reads the config; missing keys have the defaults of transformers. Raises CheckpointError, which names the key,
    for options that the model does not support."""
    config = checkpoint.config

    def read(key: str, default: Any, kind: type = int) -> Any:
        value = default if config.get(key) is None else config[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, bool) if kind is bool else number and value > 0 and (kind is float or value == int(value)):
            return kind(value)
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'} has {key} = {value!r}, where a {kind.__name__} is needed",
            hint="compare it with the config.json that the model's authors publish",
        )

    rope = {} if config.get("rope_parameters") is None else config["rope_parameters"]
    for key, value, wanted in (
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("rope_parameters", rope if not isinstance(rope, dict) else rope.get("rope_type", "default"), "default"),
    ):
        if value != wanted:
            hint = "choose another implementation: [select.model] use"
            raise CheckpointError(f"{key} is {value!r}; this implementation supports only {wanted!r}", hint=hint)
    hidden_size, num_heads = read("hidden_size", None), read("num_attention_heads", None)
    return Shape(
        hidden_size=hidden_size,
        intermediate_size=read("intermediate_size", None),
        num_layers=read("num_hidden_layers", None),
        num_heads=num_heads,
        num_kv_heads=read("num_key_value_heads", 8),
        head_dim=read("head_dim", 128),
        vocab_size=read("vocab_size", None),
        max_model_len=read("max_position_embeddings", None),
        norm_eps=read("rms_norm_eps", 1e-6, float),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        qkv_bias=read("attention_bias", True, bool),
        out_bias=read("attention_out_bias", False, bool),
        mlp_bias=read("mlp_bias", False, bool),
        tied=read("tie_word_embeddings", False, bool),
    )


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """One site for every kernel that the model binds, with the names that the layers of ``llmk.nn`` use."""
    shape = shape_of(checkpoint)
    hidden, inner, count = shape.hidden_size, shape.intermediate_size, shape.num_layers
    attention = AttentionFacts(
        num_layers=count, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim
    )
    dtype = str(checkpoint.config.get("dtype") or "float32")
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="",  # filled in with the spec's id
        num_layers=count,
        hidden_size=hidden,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_model_len,
        dtype=dtype if dtype in ("bfloat16", "float16") else "float32",
        num_parameters=shape.num_parameters,
        attention=(attention,),
        linear=(
            LinearFacts(
                site="qkv", in_features=hidden, out_features=sum(shape.qkv_sizes), bias=shape.qkv_bias, count=count
            ),
            LinearFacts(
                site="out", in_features=shape.qkv_sizes[0], out_features=hidden, bias=shape.out_bias, count=count
            ),
            *mlp_linears(hidden, inner, bias=shape.mlp_bias, count=count),
            head_linear(hidden, shape.vocab_size),
        ),
        ops=(
            embedding_op(shape.vocab_size, hidden),
            *norm_ops(hidden),
            attention_op(attention, qk_norm=False, rotary_dim=shape.head_dim),
            mlp_op(inner),
        ),
    )
