"""Llama 4, text alone: attention within chunks in most layers, layers without rotation whose queries grow with their
position, and a routed expert whose input is scaled, alongside a shared one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, MoE, QueryScale, Residual
from llmk.tree.config import MOST_EXPERTS
from llmk_models.no_rope import rotated_layers
from llmk_models.parts import Family, Names, Parts
from llmk_models.text_part import text_part
from llmk_models.windows import FULL

FAMILY = Family(
    bias_flags=("attention_bias",),
    head_dim=128,
    num_kv_heads=8,
    norm_eps=1e-5,
    rope_theta=500_000.0,
    neighbours=True,
)
"""These and the following numbers are the defaults of transformers' config class."""
CHUNKED = "chunked_attention"


def tree(config: Config) -> CausalLM:
    """The tree of a Llama 4 checkpoint; of one that reads images too, its text part."""
    has_images = config.architecture == "Llama4ForConditionalGeneration"
    config = text_part(config) if "text_config" in config.values else config
    parts = Parts(config, FAMILY)
    if has_images:
        parts.root, parts.names = "language_model.", Names(head="language_model.lm_head")
    rotated = rotated_layers(config, parts.num_layers)
    chunked = _chunked(config, rotated)
    feed_forward = _feed_forward(config, parts)
    chunk = config.nullable(config.size, "attention_chunk_size", 8192)
    normed: dict[str, Any] = {"norm_weighted": False, "norm_after_rope": True}
    normed["qk_norm"] = parts.eps if config.flag("use_qk_norm", True) else None
    scale = None
    if config.flag("attn_temperature_tuning", True):
        scale = QueryScale(config.number("attn_scale", 0.1), config.size("floor_scale", 8192), offset=1)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        own = normed if rotated[index] else {"query_scale": scale}
        if chunked[index] and chunk is not None:
            own = {**own, "window": chunk, "chunked": True}
        attention = parts.attention(f"{at}.self_attn", rotated=rotated[index], **own)
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.feed_forward"))

    ignored = (r"vision_model\..*", r"multi_modal_projector\..*") if has_images else ()
    return parts.decoder(layer, ignored=ignored)


def _feed_forward(config: Config, parts: Parts) -> Callable[[int, str], Block]:
    """What makes a layer's feed-forward block by its index and its name."""
    facts = MoEFacts(
        site="moe",
        num_experts=config.size("num_local_experts", 16, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 1),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
    )
    if facts.top_k > 1:
        raise config.unsupported(f"num_experts_per_tok = {facts.top_k}: the input of one expert alone can be scaled")
    step = config.size("interleave_moe_layer_step", 1)
    stated = config.values.get("moe_layers") is not None
    sparse = config.counts("moe_layers") if stated else tuple(range(step - 1, parts.num_layers, step))

    def feed_forward(index: int, at: str) -> Block:
        if index not in sparse:
            return parts.mlp(at, config.size("intermediate_size_mlp", 16384))
        shared = parts.mlp(f"{at}.shared_expert", prefix="shared_", partial=True)
        return MoE.of(at, facts, router="router", transposed=True, scaled_input=True, shared=shared)

    return feed_forward


def _chunked(config: Config, rotated: tuple[bool, ...]) -> tuple[bool, ...]:
    """Whether each layer attends within chunks: those that rotate, unless the config says otherwise. Raises
    CheckpointError."""
    kinds = config.texts("layer_types")
    if kinds and len(kinds) < len(rotated):
        raise config.refuse(f"num_hidden_layers = {len(rotated)}, but layer_types of {len(kinds)} layers")
    for kind in kinds:
        if kind not in (FULL, CHUNKED):
            raise config.refuse(f"layer_types of {kind!r}, which is neither {FULL!r} nor {CHUNKED!r}")
    return tuple(kind == CHUNKED for kind in kinds) or rotated
