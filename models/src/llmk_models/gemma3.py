"""Gemma 3 (arXiv:2503.19786): Gemma 2 with norms of queries and keys in place of soft caps, sliding windows in most
layers, and RoPE with another base and scaling in the others."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts
from llmk_models.text_part import text_part
from llmk_models.windows import FULL, SLIDING, layer_kinds, sliding_rope

FAMILY = Family(
    bias_flags=("attention_bias",),
    qk_norm=True,
    head_dim=256,
    num_kv_heads=4,
    rope_theta=1_000_000.0,
    tied=True,
    activation_key="hidden_activation",
    activations=("gelu_pytorch_tanh",),
    norm_offset=1.0,
)
"""These and the following numbers are the defaults of transformers' config class."""
_OF_TEXT = {"vocab_size": 262_208, "num_attention_heads": 8, "max_position_embeddings": 131_072}
"""Defaults of keys that published configs with an image part leave out."""


def tree(config: Config) -> CausalLM:
    """The tree of a Gemma 3 checkpoint; of one that reads images too, its text part."""
    has_images = config.architecture == "Gemma3ForConditionalGeneration"
    config = text_part(config, **_OF_TEXT) if has_images else config
    if config.values.get("use_bidirectional_attention"):
        problem = "use_bidirectional_attention: it does not generate text from left to right"
        raise config.refuse(problem, hint="serve a causal language model")
    config.choice("attn_logit_softcapping", None)
    parts = Parts(config, FAMILY, kind=FULL)
    parts.root = "language_model." if has_images else ""
    kinds = layer_kinds(config, parts.num_layers, period=config.size("sliding_window_pattern", 6))
    window = config.nullable(config.size, "sliding_window", 4096)
    local = sliding_rope(config, parts.rope, config.positive("rope_local_base_freq", 10_000.0))
    by_kind = {SLIDING: (window, local), FULL: (None, parts.rope)}
    scale = config.positive("query_pre_attn_scalar", 256) ** -0.5

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", *by_kind[kinds[index]], scale=scale)
        return parts.sandwich(at, attention, parts.mlp(f"{at}.mlp", activation="gelu_tanh"))

    cap = config.positive("final_logit_softcapping", None)
    ignored = (r"vision_tower\..*", r"multi_modal_projector\..*") if has_images else ()
    return parts.decoder(layer, scale=parts.hidden_size**0.5, softcap=cap, ignored=ignored)
