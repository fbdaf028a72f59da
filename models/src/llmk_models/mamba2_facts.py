"""Reads the shape and facts of Mamba-2 from ``config.json``. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llmk.api import Checkpoint, CheckpointError, LinearFacts, ModelFacts
from llmk.nn.facts import StateSpaceSizes, embedding_op, head_linear, norm_ops, recurrent_site
from llmk_models.config import checked, checkpoint_dtype, number, required
from llmk_models.modules import with_modules

MAX_MODEL_LEN = 262_144
"""A checkpoint does not limit the length, and the state has a fixed size. Published models of the family were tested up
to this length (Codestral Mamba)."""

_ACTIVATIONS = ("silu", "swish")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Shape:
    """Sizes and options of one checkpoint."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    mixer: StateSpaceSizes
    norm_eps: float
    bias: bool
    tied: bool
    fp32_residual: bool

    @property
    def add_norm(self) -> str:
        """The op, and its site, that adds the residual."""
        return "add_rms_norm_fp32_residual" if self.fp32_residual else "add_rms_norm"

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        hidden, mixer = self.hidden_size, self.mixer
        projections = sum(mixer.projected_parts) * (hidden + self.bias) + hidden * (mixer.inner_size + self.bias)
        conv = sum(mixer.conv_parts) * (mixer.conv_kernel + mixer.conv_bias)
        layer = projections + conv + 3 * mixer.num_heads + mixer.inner_size + hidden
        return self.num_layers * layer + self.vocab_size * hidden * (1 if self.tied else 2) + hidden


@checked
def shape_of(checkpoint: Checkpoint) -> Mamba2Shape:
    """Sizes and options of a Mamba-2 checkpoint; defaults are those of transformers' config class.

    Raises:
        CheckpointError: a size is missing, sizes are inconsistent, or the activation is not SiLU.
    """
    config = checkpoint.config
    hidden = required(checkpoint, "hidden_size")
    low, high = (number(limit) for limit in config.get("time_step_limit") or (0.0, inf))
    mixer = StateSpaceSizes(
        num_heads=config.get("num_heads", 128),
        head_dim=config.get("head_dim") or 64,
        num_groups=config.get("n_groups", 8),
        state_size=config.get("state_size", 128),
        conv_kernel=config.get("conv_kernel", 4),
        conv_bias=bool(config.get("use_conv_bias", True)),
        dt_limits=(low, None if high == inf else high),
    )
    _check(checkpoint, hidden, mixer)
    return Mamba2Shape(
        hidden_size=hidden,
        num_layers=required(checkpoint, "num_hidden_layers"),
        vocab_size=required(checkpoint, "vocab_size"),
        mixer=mixer,
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        bias=bool(config.get("use_bias", False)),
        tied=bool(config.get("tie_word_embeddings", False)),
        fp32_residual=bool(config.get("residual_in_fp32", True)),
    )


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a Mamba-2 checkpoint."""
    shape, dtype = shape_of(checkpoint), checkpoint_dtype(checkpoint.config)
    hidden, count, mixer = shape.hidden_size, shape.num_layers, shape.mixer
    state, op = recurrent_site(mixer, count, dtype)
    return ModelFacts(
        architecture=checkpoint.architecture,
        model="",  # filled in with the spec's id
        num_layers=count,
        hidden_size=hidden,
        vocab_size=shape.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        dtype=dtype,
        num_parameters=shape.num_parameters,
        recurrent=(state,),
        linear=with_modules(
            _linears(shape),
            ({"in": ("mixer.in_proj",), "out": ("mixer.out_proj",)}, range(count)),
            prefix="backbone.layers",
        ),
        ops=(embedding_op(shape.vocab_size, hidden), *norm_ops(hidden, add_norm=shape.add_norm), op),
        parallel=("tensor", "pipeline"),
    )


def _check(checkpoint: Checkpoint, hidden: int, mixer: StateSpaceSizes) -> None:
    config, name = checkpoint.config, checkpoint.architecture
    inner, activation = int(config.get("expand", 2) * hidden), config.get("hidden_act", "silu")
    problem = ""
    if activation not in _ACTIVATIONS:
        problem = f"hidden_act = {activation!r}: the native implementation has {_ACTIVATIONS[0]} only"
    elif inner != mixer.inner_size:
        problem = f"expand * hidden_size = {inner}, but num_heads * head_dim = {mixer.inner_size}"
    elif mixer.num_heads % mixer.num_groups:
        problem = f"num_heads = {mixer.num_heads}, which n_groups = {mixer.num_groups} does not divide"
    if problem:
        raise CheckpointError(
            f"{name} with {problem}",
            hint="compare the checkpoint's config.json with the one that the model's authors publish",
        )


def _linears(shape: Mamba2Shape) -> tuple[LinearFacts, ...]:
    hidden, count, mixer = shape.hidden_size, shape.num_layers, shape.mixer
    return (
        LinearFacts(
            site="in",
            in_features=hidden,
            out_features=sum(mixer.projected_parts),
            bias=shape.bias,
            count=count,
            parallel="column",
            units=tuple((mixer.units, size // mixer.units) for size in mixer.projected_parts),
        ),
        LinearFacts(
            site="out",
            in_features=mixer.inner_size,
            out_features=hidden,
            bias=shape.bias,
            count=count,
            parallel="row",
        ),
        head_linear(hidden, shape.vocab_size),
    )
