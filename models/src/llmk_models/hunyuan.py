"""Hunyuan: queries and keys are normed after their rotation, whose base may be stretched by a fixed factor; some
have experts and a shared one in every layer (arXiv:2411.02265)."""

from __future__ import annotations

from typing import Any

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, MoE, Residual, Rope
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of a Hunyuan checkpoint, dense or with experts."""
    config.choice("use_qk_norm", True)
    config.choice("use_cla", False)
    parts = Parts(config, FAMILY)
    parts.rope = _stretched(config, parts.rope)
    experts = _experts(parts) if config.architecture == "HunYuanMoEV1ForCausalLM" else None
    own: dict[str, Any] = {"norm_after_rope": True, "norm_names": ("query_layernorm", "key_layernorm")}

    def feed_forward(at: str) -> Block:
        if experts is None:
            return parts.mlp(at)
        shared = parts.mlp(f"{at}.shared_mlp", prefix="shared_", partial=True)
        return MoE.of(at, experts, shared=shared, router="gate.wg")

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn", **own), feed_forward(f"{at}.mlp"))

    return parts.decoder(layer)


def _experts(parts: Parts) -> MoEFacts:
    return MoEFacts(
        site="moe",
        num_experts=_same(parts.config, "num_experts"),
        top_k=_same(parts.config, "moe_topk"),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
    )


def _same(config: Config, key: str) -> int:
    """A number that configs may state for each layer. Raises CheckpointError where layers differ."""
    if not isinstance(config.values.get(key), list):
        return config.size(key, 1, most=MOST_EXPERTS)
    stated = set(config.counts(key)[: config.num_layers("num_hidden_layers")])
    if len(stated) != 1 or not (number := stated.pop()):
        raise config.unsupported(f"{key} that differs between layers")
    return number


def _stretched(config: Config, rope: Rope) -> Rope:
    """The base times ``alpha ** (dim / (dim - 2))``, which checkpoints call ``"dynamic"``. Raises CheckpointError."""
    settings = rope.parameters
    if settings["rope_type"] != "dynamic":
        return rope
    alpha = settings.get("alpha")
    if not isinstance(alpha, (int, float)) or alpha <= 0:
        raise config.refuse("rope_type = 'dynamic' without a positive alpha")
    theta = settings["rope_theta"] * alpha ** (rope.dim / (rope.dim - 2))
    return Rope.with_settings(rope.dim, rope.positions, {"rope_type": "default", "rope_theta": theta})
