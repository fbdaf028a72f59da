"""StableLM (arXiv:2402.17834): LayerNorm, rotation of a part of each head, and in some checkpoints attention and MLP
side by side, and norms of each query and key head."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(num_kv_heads=32, eps_key="layer_norm_eps", norm_eps=1e-5, centered=True, norm_bias=True)
"""These and the following numbers are the defaults of transformers' config class."""
_NORM_NAMES = ("q_layernorm.norms.{}", "k_layernorm.norms.{}")


def tree(config: Config) -> CausalLM:
    """The tree of a StableLM checkpoint."""
    parts = Parts(config, FAMILY, partial_rotary_factor=0.25)
    parts.qkv_bias, side_by_side = config.flag("use_qkv_bias", False), config.flag("use_parallel_residual", False)
    norms: dict[str, Any] = {"own_qk_norms": True, "qk_norm": parts.eps, "norm_names": _NORM_NAMES}
    own = norms if config.flag("qk_layernorm", False) else {}

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention, mlp = parts.attention(f"{at}.self_attn", **own), parts.mlp(f"{at}.mlp")
        if side_by_side:
            return parts.parallel(at, "input_layernorm", attention, mlp)
        return parts.pre_normed(at, attention, mlp)

    return parts.decoder(layer)
