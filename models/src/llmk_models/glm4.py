"""GLM-4: half of each head is rotated, by pairs of neighbours; GLM-4-0414 has norms after the blocks, too
(arXiv:2406.12793)."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(num_kv_heads=2, head_dim=128, norm_eps=1.5625e-7, neighbours=True)
"""These and the following numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of a GLM-4 or GLM-4-0414 checkpoint."""
    parts = Parts(config, FAMILY, partial_rotary_factor=0.5)
    parts.qkv_bias = config.flag("attention_bias", True)
    normed_after = config.architecture == "Glm4ForCausalLM"

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention, mlp = parts.attention(f"{at}.self_attn"), parts.packed_mlp(f"{at}.mlp")
        if not normed_after:
            return parts.pre_normed(at, attention, mlp)
        names = ("input", "post_self_attn", "post_attention", "post_mlp")
        return parts.sandwich(at, attention, mlp, names)

    return parts.decoder(layer)
