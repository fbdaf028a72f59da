"""The decoder, made of layers that bind the kernels of the plan. Parameters have the checkpoint's names."""

from __future__ import annotations

from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn import AddRMSNorm, Attention, Build, Embedding, GatedMLP, Linear, LMHead, StepContext
from llmk.nn.attention import cache_spec
from llmk.reference.rope.rotation import cos_sin_cache

from .facts import Shape, shape_of


class Layer:
    """Norm, attention, norm, feed-forward; the residual is a separate tensor. All are ``[tokens, hidden]``."""

    def __init__(self, build: Build, shape: Shape, index: int, cos_sin: Tensor) -> None:
        prefix, hidden = f"model.layers.{index}", shape.hidden_size
        self._attention_norm = AddRMSNorm(build, f"{prefix}.input_layernorm", hidden, shape.norm_eps)
        self._qkv = Linear(
            build,
            f"{prefix}.self_attn.qkv_proj",
            hidden,
            shape.qkv_sizes,
            site="qkv",
            parts=("q_proj", "k_proj", "v_proj"),
            bias=shape.qkv_bias,
        )
        self._attention = Attention(
            build,
            f"{prefix}.self_attn",
            index=index,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            cos_sin=cos_sin,
        )
        self._out = Linear(
            build, f"{prefix}.self_attn.o_proj", shape.qkv_sizes[0], (hidden,), site="out", bias=shape.out_bias
        )
        self._mlp_norm = AddRMSNorm(build, f"{prefix}.post_attention_layernorm", hidden, shape.norm_eps)
        self._mlp = GatedMLP(build, f"{prefix}.mlp", hidden, shape.intermediate_size, bias=shape.mlp_bias)

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """Maps the previous layer's output and the residual to this layer's output and the next residual."""
        x, residual = self._attention_norm(x, residual)
        x = self._out(self._attention(self._qkv(x), step))
        x, residual = self._mlp_norm(x, residual)
        return self._mlp(x), residual


class AcmeModel:
    """Follows ``llmk.nn.Model``."""

    ignored_weights: tuple[str, ...] = ()

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        shape = shape_of(checkpoint)
        rope = {"rope_type": "default"}
        cos_sin = cos_sin_cache(rope, shape.head_dim, shape.max_model_len, shape.rope_theta).to(build.device)
        aliases = ("lm_head.weight",) if shape.tied else ()
        table = Embedding(build, "model.embed_tokens", shape.vocab_size, shape.hidden_size, aliases=aliases)
        self._embed = table
        self._layers = [Layer(build, shape, index, cos_sin) for index in range(shape.num_layers)]
        self._norm = AddRMSNorm(build, "model.norm", shape.hidden_size, shape.norm_eps)
        tied_to = table if shape.tied else None
        self._head = LMHead(build, "lm_head", shape.hidden_size, shape.vocab_size, tied_to=tied_to)
        self._build = build
        self.weights = build.layers

    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        """Final, normed hidden states ``[tokens, hidden]`` of int64 ``[tokens]``."""
        x, residual = self._embed(token_ids), None
        for layer in self._layers:
            x, residual = layer(x, residual, step)
        normed: Tensor = self._norm(x, residual)[0]
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocab]`` of ``[rows, hidden]``."""
        return self._head(hidden)

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        """Every layer keeps keys and values."""
        return [(index, "attention", cache_spec(self._build, "attention")) for index in range(len(self._layers))]
