"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose tokens attend to those that an indexer picks (DSA, arXiv:2512.02556)."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, IndexShape, Residual, Rope, SelectedAttention
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, UNSERVED_HINT, latent_shape
from llmk_models.parts import Family, MakeLayer, Parts, ahead_of, with_values
from llmk_models.sigmoid_experts import sigmoid_experts

_GLM = "GlmMoeDsaForCausalLM"
_SIZES: dict[str, dict[str, Any]] = {
    _GLM: {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32},
    "DeepseekV32ForCausalLM": {"q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "index_n_heads": 64},
}
"""These and the following numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of a DeepSeek-V3.2 or GLM-5 checkpoint."""
    parts, layer = _decoder(config)
    return parts.decoder(layer, ignored=parts.names_ahead)


def _decoder(config: Config) -> tuple[Parts, MakeLayer]:
    """Its parts, and what makes a layer."""
    is_glm, sizes = config.architecture == _GLM, _SIZES[config.architecture]
    config = with_values(config, **{key: config.values.get(key, default) for key, default in sizes.items()})
    config.choice("hidden_act", "silu", "swish", hint=UNSERVED_HINT)
    config.choice("scoring_func", "sigmoid", hint=UNSERVED_HINT)
    parts, latent = Parts(config, Family(norm_eps=1e-5 if is_glm else 1e-6)), latent_shape(config)
    if latent.q_lora_rank is None:
        raise config.refuse("q_lora_rank = null, but an indexer, whose queries come from the compressed ones")
    index = IndexShape(
        index_n_heads=config.size("index_n_heads"),
        index_head_dim=config.size("index_head_dim", 128),
        index_topk=config.size("index_topk", 2048),
        neighbours=is_glm,
    )
    picks = _picks(config, parts.num_layers)
    rope = parts.rope = Rope.of(config, latent.qk_rope_head_dim)
    counts: dict[str, Any] = {"num_experts": 256, "top_k": 8, "dense": 3, "shared": 1, "inner_size": 2048}
    feed_forward = sigmoid_experts(parts, **counts, scaling=2.5, groups=(1, 1) if is_glm else (8, 4))

    def layer(at_layer: int, at: str) -> tuple[Residual, ...]:
        is_ahead = at_layer >= parts.num_layers  # a head that predicts a further token picks for itself
        own: dict[str, Any] = {"picks": is_ahead or picks[at_layer]}
        attention = SelectedAttention.of(f"{at}.self_attn", latent, index, rope, LATENT_NORM_EPS, **own)
        return parts.pre_normed(at, attention, feed_forward(at_layer, f"{at}.mlp"))

    return parts, layer


def _picks(config: Config, num_layers: int) -> tuple[bool, ...]:
    """Which layers have an indexer; the others take the tokens of the last one before (arXiv:2603.12201). Raises
    CheckpointError."""
    every, offset = config.count("index_topk_freq", 1) or 1, config.count("index_skip_topk_offset", 2)
    pattern = tuple({"F": "full", "S": "shared"}.get(kind, kind) for kind in config.text("index_topk_pattern", ""))
    kinds = config.texts("indexer_types") or pattern
    if not kinds:
        return tuple(max(index - offset + 1, 0) % every == 0 for index in range(num_layers))
    if len(kinds) != num_layers or kinds[0] != "full" or set(kinds) - {"full", "shared"}:
        raise config.refuse(
            f"num_hidden_layers = {num_layers} and indexer_types of {len(kinds)} layers, {', '.join(kinds)}: each is"
            " full or shared, the first full"
        )
    return tuple(kind == "full" for kind in kinds)


ahead = ahead_of(_decoder)
"""The heads that predict further tokens (MTP)."""
