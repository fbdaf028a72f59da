"""MiMo-V2-Flash: windows with sinks and twice the key-value heads in most layers, values narrower than keys and scaled,
and experts that are chosen by sigmoid scores with a bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmk.tree import CausalLM, Config, Residual, Rope, SelfAttention
from llmk_models.parts import Family, Parts, with_values
from llmk_models.sigmoid_experts import sigmoid_experts
from llmk_models.windows import FULL, SLIDING, layer_kinds

FAMILY = Family(num_kv_heads=4, head_dim=192, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""
_THETAS = {FULL: ("rope_theta", 5_000_000.0), SLIDING: ("swa_rope_theta", 10_000.0)}
_PARTIAL = 0.334
_FULL_EVERY = 6


def tree(config: Config) -> CausalLM:
    """The tree of a MiMo-V2-Flash checkpoint, with the keys of its authors or of transformers. The layers that predict
    further tokens (MTP) are not used."""
    config = _usual(config)
    parts = Parts(config, FAMILY, kind=FULL)
    kinds = layer_kinds(config, parts.num_layers, period=_FULL_EVERY)
    window = config.size("sliding_window", 129)
    sizes: dict[str, Any] = {"num_experts": 256, "top_k": 8, "dense": 1, "shared": 0, "inner_size": 2048}
    feed_forward = sigmoid_experts(parts, **sizes)
    bias = config.flag("attention_bias", False)
    own: dict[str, Any] = {"bias": bias, "out_bias": False, "value_dim": config.size("v_head_dim", 128)}
    unscaled = config.values.get("attention_value_scale", 0.0) is None
    own["out_scale"] = 1.0 if unscaled else config.positive("attention_value_scale", 0.707)
    swa_heads = replace(parts.heads, kv=config.size("swa_num_key_value_heads", 2 * parts.heads.kv))
    by_kind: dict[str, Any] = {
        FULL: (parts.heads, {"rope": _rope(config, parts, FULL)}),
        SLIDING: (swa_heads, {"rope": _rope(config, parts, SLIDING), "window": window, "sinks": True}),
    }

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        heads, options = by_kind[kinds[index]]
        options = {**own, **options, "sinks_name": "attention_sink_bias"}
        attention = SelfAttention.of(f"{at}.self_attn", parts.hidden_size, heads, **options)
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer, ignored=(r"model\.mtp\..*",))


def _rope(config: Config, parts: Parts, kind: str) -> Rope:
    key, theta = _THETAS[kind]
    partial = config.positive("partial_rotary_factor", _PARTIAL)
    stated = config.rope("rope_parameters").get(kind)
    own = dict(stated) if isinstance(stated, Mapping) else {"rope_theta": config.positive(key, theta)}
    settings = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial, **own}
    if settings["rope_type"] != "default":
        raise config.unsupported(f"rope_type = {settings['rope_type']!r}, which is not 'default'")
    return Rope.with_settings(parts.heads.dim, parts.rope.positions, settings)


def _usual(config: Config) -> Config:
    """The authors' keys under the names that transformers has."""
    for key, served in (("scoring_func", "sigmoid"), ("add_full_attention_sink_bias", False)):
        config.choice(key, served)
    config.choice("add_swa_attention_sink_bias", True)
    for key, other in (("swa_head_dim", "head_dim"), ("swa_v_head_dim", "v_head_dim")):
        config.choice(key, config.size(other, FAMILY.head_dim if other == "head_dim" else 128))
    config.choice("swa_num_attention_heads", config.size("num_attention_heads"))
    values: dict[str, Any] = {}
    if pattern := config.counts("hybrid_layer_pattern"):
        values["layer_types"] = [SLIDING if each else FULL for each in pattern]
    elif not config.texts("layer_types"):
        count = range(config.num_layers("num_hidden_layers"))
        values["layer_types"] = [FULL if not i or not (i + 1) % _FULL_EVERY else SLIDING for i in count]
    if isinstance(config.values.get("moe_layer_freq"), list):
        values["mlp_layer_types"] = ["sparse" if each else "dense" for each in config.counts("moe_layer_freq")]
    if (size := config.size("sliding_window_size", None)) is not None:
        values["sliding_window"] = size + 1  # that many earlier tokens
    if (eps := config.number("layernorm_epsilon", None)) is not None:
        values["rms_norm_eps"] = eps
    return with_values(config, **values)
