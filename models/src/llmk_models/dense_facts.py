"""What the dense Llama family looks like, read from ``config.json``. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmk.api import AttentionFacts, Checkpoint, CheckpointError, LinearFacts, ModelFacts
from llmk.nn.facts import attention_op, embedding_op, head_linear, mlp_linears, mlp_op, norm_ops
from llmk_models.config import checkpoint_dtype, context_length, layer_windows, required, rope_parameters


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one architecture apart, where its config is silent.

    ``qkv_bias`` and ``qk_norm`` are properties of the architecture, ``bias_flags`` the config's switches that it obeys.
    ``windows``: ``"none"``, ``"all"`` layers, or those that ``use_sliding_window`` switches on.
    """

    qkv_bias: bool = False
    bias_flags: tuple[str, ...] = ()
    qk_norm: bool = False
    windows: str = "none"
    head_dim: int | None = None
    num_kv_heads: int | None = None


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(bias_flags=("attention_bias", "mlp_bias")),
    "MistralForCausalLM": Family(windows="all", num_kv_heads=8),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows="switched", num_kv_heads=32),
    "Qwen3ForCausalLM": Family(
        bias_flags=("attention_bias",), qk_norm=True, windows="switched", head_dim=128, num_kv_heads=32
    ),
}
"""By architecture; the numbers are the defaults of transformers' config classes."""

_DEFAULT_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class DenseShape:
    """Sizes and switches of one checkpoint. ``windows`` has one entry per layer."""

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

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> DenseShape:
        """Reads a checkpoint's config. Raises :class:`~llmk.api.CheckpointError` for what the family can't express."""
        config, family = checkpoint.config, FAMILIES[checkpoint.architecture]
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise CheckpointError(
                f"{checkpoint.architecture} with hidden_act = {activation!r}: the native implementation has silu only",
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
            num_kv_heads=_or(config.get("num_key_value_heads", family.num_kv_heads), num_heads),
            head_dim=_or(config.get("head_dim", family.head_dim), hidden_size // num_heads),
            vocab_size=required(checkpoint, "vocab_size"),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            qkv_bias=family.qkv_bias or attention_bias,
            out_bias=attention_bias,
            mlp_bias="mlp_bias" in family.bias_flags and bool(config.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
            tied=bool(config.get("tie_word_embeddings", False)),
            windows=_windows(config, family, num_layers),
            rope=rope_parameters(config),
            max_position=required(checkpoint, "max_position_embeddings"),
        )

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return int(self.head_dim * self.rope.get("partial_rotary_factor", 1.0))

    @property
    def max_model_len(self) -> int:
        """Tokens that the positions reach."""
        return context_length(self.max_position, self.rope)

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        hidden, q_size, qkv_size = self.hidden_size, self.qkv_sizes[0], sum(self.qkv_sizes)
        attention = qkv_size * (hidden + self.qkv_bias) + hidden * (q_size + self.out_bias)
        attention += 2 * self.head_dim * self.qk_norm
        mlp = 3 * hidden * self.intermediate_size + (2 * self.intermediate_size + hidden) * self.mlp_bias
        tables = self.vocab_size * hidden * (1 if self.tied else 2)
        return tables + hidden + self.num_layers * (attention + mlp + 2 * hidden)

    def site(self, layer: int) -> str:
        """The attention site of a layer."""
        return "attention" if self.windows[layer] is None else "sliding_attention"


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Llama, Mistral, Qwen2 or Qwen3 checkpoint."""
    shape = DenseShape.of(checkpoint)
    sites = [shape.site(layer) for layer in range(shape.num_layers)]
    attention = tuple(
        AttentionFacts(
            site=site,
            num_layers=sites.count(site),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            sliding_window=shape.windows[sites.index(site)],
        )
        for site in dict.fromkeys(sites)
    )
    hidden, count, qkv = shape.hidden_size, shape.num_layers, sum(shape.qkv_sizes)
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="models.dense",
        num_layers=count,
        hidden_size=hidden,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_model_len,
        dtype=checkpoint_dtype(checkpoint.config),
        num_parameters=shape.num_parameters,
        attention=attention,
        linear=(
            LinearFacts(site="qkv", in_features=hidden, out_features=qkv, bias=shape.qkv_bias, count=count),
            LinearFacts(
                site="out", in_features=shape.qkv_sizes[0], out_features=hidden, bias=shape.out_bias, count=count
            ),
            *mlp_linears(hidden, shape.intermediate_size, bias=shape.mlp_bias, count=count),
            head_linear(hidden, shape.vocab_size),
        ),
        ops=(
            embedding_op(shape.vocab_size, hidden),
            *norm_ops(hidden),
            *(attention_op(facts, qk_norm=shape.qk_norm, rotary_dim=shape.rotary_dim) for facts in attention),
            mlp_op(shape.intermediate_size),
        ),
    )


def _windows(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window", _DEFAULT_WINDOW)
    if family.windows == "all":
        return (window,) * num_layers
    if family.windows == "none" or not config.get("use_sliding_window", False):
        return (None,) * num_layers
    return layer_windows(config, num_layers, window, config.get("max_window_layers", 28))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
