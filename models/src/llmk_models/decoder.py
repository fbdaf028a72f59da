"""The decoder that the native families share; they differ in norms, attention and feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from llmk.api import CacheSpec
from llmk.nn import (
    AddRMSNorm,
    Attention,
    Build,
    Embedding,
    Linear,
    LMHead,
    NormedLinear,
    NormedMLP,
    StepContext,
)
from llmk.nn.attention import cache_spec
from llmk.reference.rope.rotation import cos_sin_cache
from llmk_models.decoder_facts import DecoderShape
from llmk_models.stack import Block, Norm, Stack

AttentionHalf = Callable[[Tensor, Tensor | None, StepContext], tuple[Tensor, Tensor]]
"""Half of a layer: norm and attention with its projections. Maps the previous half's output and the residual, both
``[tokens, hidden]``, to its output and the next residual."""
FeedForwardHalf = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Half of a layer: norm and feed-forward block, likewise."""


class Normed:
    """Half of a layer: a norm, then a block."""

    def __init__(self, norm: AddRMSNorm, block: Callable[..., Tensor]) -> None:
        self._norm = norm
        self.block = block

    def __call__(self, x: Tensor, residual: Tensor | None, *step: StepContext) -> tuple[Tensor, Tensor]:
        """As :data:`AttentionHalf`, or :data:`FeedForwardHalf` without a step."""
        x, residual = self._norm(x, residual)
        return self.block(x, *step), residual


class SelfAttention:
    """QKV projection, attention of ``kind``, and output projection. The QKV projection has ``qkv_sizes`` rows
    (``None``: the shape's)."""

    kind: type[Attention] = Attention

    def __init__(
        self,
        build: Build,
        shape: DecoderShape,
        index: int,
        cos_sin: Tensor,
        qkv_sizes: tuple[int, ...] | None = None,
    ) -> None:
        prefix = f"model.layers.{index}.self_attn"
        self.qkv = Linear(
            build,
            f"{prefix}.qkv_proj",
            shape.hidden_size,
            qkv_sizes or shape.qkv_sizes,
            site="qkv",
            parts=("q_proj", "k_proj", "v_proj"),
            bias=shape.qkv_bias,
            parallel="column",
            units=shape.qkv_heads,
        )
        self.attention = self.kind(
            build,
            prefix,
            index=build.parallel.local_index(index, shape.num_layers),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            cos_sin=cos_sin,
            qk_norm_eps=shape.norm_eps if shape.qk_norm else None,
            site=shape.site(index),
        )
        self.out = Linear(
            build,
            f"{prefix}.o_proj",
            shape.qkv_sizes[0],
            (shape.hidden_size,),
            site="out",
            bias=shape.out_bias,
            parallel="row",
        )

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        return self.attend(self.qkv(x), step)

    def attend(self, qkv: Tensor, step: StepContext) -> Tensor:
        """Maps the QKV projection's output to ``[tokens, hidden]``."""
        return self.out(self.attention(qkv, step))


class NormedSelfAttention:
    """Half of a layer: one op for the norm and the QKV projection, then attention."""

    def __init__(self, build: Build, norm: AddRMSNorm, attention: SelfAttention) -> None:
        self._attention = attention
        self._qkv = NormedLinear(build, norm, attention.qkv, site="norm_qkv")

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """As :data:`AttentionHalf`."""
        qkv, residual = self._qkv(x, residual)
        return self._attention.attend(qkv, step), residual


class DecoderLayer:
    """Norm, attention, norm, feed-forward. The residual is a separate tensor, to which a norm first adds the previous
    block's output.

    Args:
        make_attention, make_mlp: create the halves of a layer from its index and the norm that each starts with.
    """

    def __init__(
        self,
        build: Build,
        shape: DecoderShape,
        index: int,
        make_attention: Callable[[int, AddRMSNorm], AttentionHalf],
        make_mlp: Callable[[int, AddRMSNorm], FeedForwardHalf],
    ) -> None:
        prefix = f"model.layers.{index}"
        hidden, eps = shape.hidden_size, shape.norm_eps
        self.attention = make_attention(index, AddRMSNorm(build, f"{prefix}.input_layernorm", hidden, eps))
        self.mlp = make_mlp(index, AddRMSNorm(build, f"{prefix}.post_attention_layernorm", hidden, eps))

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """As :class:`Block`."""
        return self.mlp(*self.attention(x, residual, step))


class Decoder(Stack):
    """Follows ``llmk.nn.Model``, except its constructor: a family reads the shape and passes it.

    The methods ``make_…`` create Llama's parts; a family overrides those in which it differs. They are called in the
    order of the layers, because each registers its parameters.
    """

    ignored_weights: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq",)

    def __init__(self, build: Build, shape: DecoderShape) -> None:
        self.build = build
        self.shape = shape
        self.hidden_size, self.residual_dtype = shape.hidden_size, build.dtype
        cos_sin = cos_sin_cache(
            shape.rope,
            shape.head_dim,
            build.max_model_len or shape.max_model_len,
            shape.rope["rope_theta"],
            trained_positions=shape.max_position,
        ).to(build.device)
        with build.stage(build.parallel.is_first):
            self.embed = self.make_embedding(("lm_head.weight",) if shape.tied else ())
        self.layers = build.stage_layers(shape.num_layers, lambda index: self.make_layer(index, cos_sin))
        with build.stage(build.parallel.is_last):
            self.norm = self.make_norm()
            self.head = self.make_head(self.embed if shape.tied else None)
        self.weights = build.layers

    def make_embedding(self, aliases: tuple[str, ...]) -> Embedding:
        """The token embedding; a tied checkpoint may also store it under ``aliases``."""
        shape = self.shape
        return Embedding(self.build, "model.embed_tokens", shape.vocab_size, shape.hidden_size, aliases=aliases)

    def make_layer(self, index: int, cos_sin: Tensor) -> Block:
        """A layer; ``cos_sin`` is the table of rotary angles."""
        return DecoderLayer(self.build, self.shape, index, partial(self.make_attention, cos_sin=cos_sin), self.make_mlp)

    def make_attention(self, index: int, norm: AddRMSNorm, cos_sin: Tensor) -> AttentionHalf:
        """A layer's attention, and the norm before it."""
        return NormedSelfAttention(self.build, norm, SelfAttention(self.build, self.shape, index, cos_sin))

    def make_mlp(self, index: int, norm: AddRMSNorm) -> FeedForwardHalf:
        """A layer's feed-forward block, and the norm before it."""
        shape, prefix = self.shape, f"model.layers.{index}.mlp"
        return NormedMLP(self.build, norm, prefix, shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)

    def make_norm(self) -> Norm:
        """The norm before the head."""
        return AddRMSNorm(self.build, "model.norm", self.shape.hidden_size, self.shape.norm_eps)

    def make_head(self, tied_to: Embedding | None) -> LMHead:
        """The LM head; if ``tied_to`` is given, its weight is the embedding's."""
        return LMHead(self.build, "lm_head", self.shape.hidden_size, self.shape.vocab_size, tied_to=tied_to)

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        sites = [(layer, self.shape.site(layer)) for layer in self.build.parallel.layers(self.shape.num_layers)]
        return [(layer, site, cache_spec(self.build, site)) for layer, site in sites]
