"""A.X K1: latent attention, and experts that are chosen by sigmoid scores, with a norm after them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmk.nn.tensor_file import read_headers, weight_files
from llmk.tree import CausalLM, Config, LatentAttention, MoE, Residual, Rope
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, latent_shape
from llmk_models.parts import Family, Parts
from llmk_models.sigmoid_experts import sigmoid_experts


def tree(config: Config) -> CausalLM:
    """The tree of an A.X K1 checkpoint. Those of its authors have no bias for the choice of experts. The layers that
    predict further tokens (MTP) are not used. Numbers are the defaults of transformers' config class."""
    config.choice("hidden_act", "silu", "swish")
    config.choice("scoring_func", "sigmoid")
    config.choice("moe_layer_freq", 1)
    config.choice("rope_interleave", True)
    parts, latent = Parts(config, Family()), latent_shape(config)
    if latent.q_lora_rank is None:
        raise config.unsupported("q_lora_rank = null")
    sizes: dict[str, Any] = {"num_experts": 192, "top_k": 8, "dense": 1, "shared": 1, "inner_size": 2048}
    sizes["biased"] = _has_bias(config)
    feed_forward = sigmoid_experts(parts, **sizes, scaling=2.5, groups=(8, 4))
    rope = parts.rope = Rope.of(config, latent.qk_rope_head_dim)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = LatentAttention.of(f"{at}.self_attn", latent, rope, LATENT_NORM_EPS)
        before, after = parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))
        norm = parts.norm(f"{at}.post_mlp_layernorm") if isinstance(after.block, MoE) else None
        return before, replace(after, post=norm)

    # The authors' files have the norm in layers without experts, too, which don't use it.
    dense = "|".join(str(index) for index in range(parts.num_layers) if not isinstance(feed_forward(index, ""), MoE))
    unused = (rf"model\.layers\.({dense})\.post_mlp_layernorm\.weight",) if dense else ()
    return parts.decoder(layer, ignored=(*parts.names_ahead, *unused))


def _has_bias(config: Config) -> bool:
    """Whether the files hold a bias for the choice of experts."""
    checkpoint = config.checkpoint
    if not checkpoint.weight_files or checkpoint.reader is not None:
        return False
    return any(each.name.endswith(".e_score_correction_bias") for each in read_headers(weight_files(checkpoint)))
