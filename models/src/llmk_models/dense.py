"""Llama, Mistral, Qwen2 and Qwen3: one decoder, whose families differ in biases, query and key norms, and windows."""

from __future__ import annotations

from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn import AddRMSNorm, Attention, Build, Embedding, GatedMLP, Linear, LMHead, StepContext
from llmk.nn.attention import cache_spec
from llmk.reference.rope import cos_sin_cache
from llmk_models.dense_facts import DenseShape


class DecoderLayer:
    """Norm, attention, norm, feed-forward. The residual runs beside; a norm first adds what the block before made."""

    def __init__(self, build: Build, shape: DenseShape, index: int, cos_sin: Tensor) -> None:
        prefix = f"model.layers.{index}"
        hidden, eps = shape.hidden_size, shape.norm_eps
        self.input_norm = AddRMSNorm(build, f"{prefix}.input_layernorm", hidden, eps)
        self.qkv = Linear(
            build,
            f"{prefix}.self_attn.qkv_proj",
            hidden,
            shape.qkv_sizes,
            site="qkv",
            parts=("q_proj", "k_proj", "v_proj"),
            bias=shape.qkv_bias,
        )
        self.attention = Attention(
            build,
            f"{prefix}.self_attn",
            index=index,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            cos_sin=cos_sin,
            qk_norm_eps=eps if shape.qk_norm else None,
            site=shape.site(index),
        )
        self.out = Linear(
            build, f"{prefix}.self_attn.o_proj", shape.qkv_sizes[0], (hidden,), site="out", bias=shape.out_bias
        )
        self.mlp_norm = AddRMSNorm(build, f"{prefix}.post_attention_layernorm", hidden, eps)
        self.mlp = GatedMLP(build, f"{prefix}.mlp", hidden, shape.intermediate_size, bias=shape.mlp_bias)

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """Takes what the block before made and the residual; returns the same. All ``[tokens, hidden]``."""
        x, residual = self.input_norm(x, residual)
        x = self.out(self.attention(self.qkv(x), step))
        x, residual = self.mlp_norm(x, residual)
        return self.mlp(x), residual


class DenseModel:
    """A decoder of the dense family. Follows ``llmk.nn.Model``."""

    ignored_weights = (r".*\.rotary_emb\.inv_freq",)

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        shape = DenseShape.of(checkpoint)
        self._build = build
        self._sites = [shape.site(index) for index in range(shape.num_layers)]
        cos_sin = cos_sin_cache(
            shape.rope,
            shape.head_dim,
            shape.max_model_len,
            shape.rope["rope_theta"],
            trained_positions=shape.max_position,
        ).to(build.device)
        tied_name = ("lm_head.weight",) if shape.tied else ()
        self.embed = Embedding(build, "model.embed_tokens", shape.vocab_size, shape.hidden_size, also_named=tied_name)
        self.layers = [DecoderLayer(build, shape, index, cos_sin) for index in range(shape.num_layers)]
        self.norm = AddRMSNorm(build, "model.norm", shape.hidden_size, shape.norm_eps)
        self.head = LMHead(
            build, "lm_head", shape.hidden_size, shape.vocab_size, tied_to=self.embed if shape.tied else None
        )
        self.weights = build.layers

    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        x = self.embed(token_ids)
        residual: Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        return [(layer, site, cache_spec(self._build, site)) for layer, site in enumerate(self._sites)]
