"""Ministral 3 (arXiv:2601.08584): Mistral whose queries have a factor that grows with the position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmk.tree import CausalLM, Config, QueryScale, Residual, Rope
from llmk_models.parts import Family, Names, Parts

FAMILY = Family(windows="all", window=None, num_kv_heads=8, head_dim=128, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""

_ROPE: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0}
_ROPE |= {"original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
"""The rotary settings of a config without any."""


def tree(config: Config) -> CausalLM:
    """The tree of a Ministral 3 checkpoint; of one that reads images too, its text part."""
    has_images = config.architecture == "Mistral3ForConditionalGeneration"
    config = _text_of(config) if has_images else config
    parts = Parts(config, FAMILY)
    if has_images:
        parts.root, parts.names = "language_model.", Names(head="language_model.lm_head")
    if not (config.rope("rope_parameters") or config.rope("rope_scaling")):
        parts.rope = Rope.with_settings(parts.heads.dim, parts.rope.positions, _ROPE)
    own = parts.rope.parameters
    beta, scale = own.get("llama_4_scaling_beta"), None
    if beta:
        scale = QueryScale(float(beta), int(own.get("original_max_position_embeddings") or parts.rope.positions))

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index], query_scale=scale)
        return parts.pre_normed(at, attention, parts.mlp(f"{at}.mlp"))

    ignored = (r"vision_tower\..*", r"multi_modal_projector\..*") if has_images else ()
    return parts.decoder(layer, ignored=ignored)


def _text_of(config: Config) -> Config:
    text = config.values.get("text_config")
    if not isinstance(text, Mapping):
        raise config.refuse("no text_config")
    if (kind := text.get("model_type", "mistral")) not in ("mistral", "ministral3"):
        raise config.refuse(f"a text_config of {kind!r}, which is neither 'mistral' nor 'ministral3'")
    plain = {} if kind == "ministral3" else {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default"}}
    tied = config.values.get("tie_word_embeddings")  # of the whole; that of the text part need not agree
    own = {} if tied is None else {"tie_word_embeddings": tied}
    values = {**plain, **text, **own, "architectures": [config.architecture]}
    return Config(replace(config.checkpoint, config=values))
