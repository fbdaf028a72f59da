"""The types and ranges of the keys of ``config.json`` that the families read.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_LARGEST = (1 << 31) - 1
_MOST_LAYERS = 10_000
_MOST_EXPERTS = 100_000
"""More than any model has. Code loops over layers and experts, so an absurd number would never end."""

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "n_shared_experts")
_SIZES = (
    "hidden_size", "n_embd", "d_model", "intermediate_size", "vocab_size", "head_dim", "max_position_embeddings",
    "n_positions", "max_seq_len", "n_ctx", "num_attention_heads", "n_head", "n_heads", "num_heads",
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "num_experts_per_tok", "moe_intermediate_size",
    "decoder_sparse_step", "moe_layer_freq", "n_group", "topk_group", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_groups", "state_size", "conv_kernel",
    "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "full_attention_interval", "original_max_position_embeddings",
)  # fmt: skip
_COUNTS = ("first_k_dense_replace", "max_window_layers", "shared_expert_intermediate_size", "sliding_window")
_POSITIVE = (
    "expand", "rope_theta", "partial_rotary_factor", "attn_logit_softcapping", "final_logit_softcapping",
    "query_pre_attn_scalar",
)  # fmt: skip
_NUMBERS = ("rms_norm_eps", "layer_norm_epsilon", "routed_scaling_factor", "attention_multiplier")
_SWITCHES = (
    "tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "use_conv_bias", "residual_in_fp32",
    "use_sliding_window", "norm_topk_prob", "multi_query",
)  # fmt: skip
_TEXTS = ("hidden_act", "hidden_activation", "scoring_func", "topk_method")
_ROPE_NUMBERS = (
    "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "low_freq_factor",
    "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim", "partial_rotary_factor",
)  # fmt: skip

NULL_COUNTS = frozenset((
    "head_dim", "num_key_value_heads", "num_kv_heads", "n_head_kv", "q_lora_rank", "n_routed_experts",
    "n_shared_experts", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
))  # fmt: skip
"""Keys for which ``null`` is a value, different from a missing key."""


def wrong(key: str, value: Any) -> str:
    """A description of a valid value, if the key's value is invalid; else empty."""
    words, is_right = _KINDS.get(key, ("", _anything))
    return "" if is_right(value) else words


def whole(key: str, value: Any) -> Any:
    """A key's value, as an ``int`` if it is an integer written with a decimal point."""
    return int(value) if key in _WHOLE and isinstance(value, float) else value


def _anything(_: Any) -> bool:
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= _LARGEST  # which "not a number" is not


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high and value == int(value)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or value in (0, 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(of(each) for each in value)


def _is_limit(value: Any) -> bool:
    """A number, or the encoding of one that JSON can't represent."""
    if isinstance(value, Mapping):
        value = value.get("__float__")
        value = float("inf") if value == "Infinity" else value
    return isinstance(value, (int, float)) and value == value


def _are_limits(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_limit(each) for each in value)


def _is_rope(value: Any) -> bool:
    """RoPE settings, or a mapping from kinds of layer to RoPE settings."""
    if not isinstance(value, Mapping):
        return False
    own = (each for each in value.values() if isinstance(each, Mapping))
    return all(map(_is_rope, own)) and all(_is_rope_entry(key, each) for key, each in value.items())


def _is_rope_entry(key: str, value: Any) -> bool:
    if value is None or isinstance(value, Mapping):
        return True
    if key in ("short_factor", "long_factor"):
        return _is_list(_is_positive)(value)
    if key in ("rope_type", "type"):
        return _is_text(value)
    return _is_positive(value) if key in _ROPE_NUMBERS else True


_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_SIZES, (f"a whole number from 1 to {_LARGEST}", _is_whole(1, _LARGEST))),
    **dict.fromkeys(_COUNTS, (f"a whole number from 0 to {_LARGEST}", _is_whole(0, _LARGEST))),
    **dict.fromkeys(_LAYERS, (f"a whole number from 1 to {_MOST_LAYERS}", _is_whole(1, _MOST_LAYERS))),
    **dict.fromkeys(_EXPERTS, (f"a whole number from 0 to {_MOST_EXPERTS}", _is_whole(0, _MOST_EXPERTS))),
    **dict.fromkeys(_POSITIVE, ("a number above 0", _is_positive)),
    **dict.fromkeys(_NUMBERS, ("a number", _is_number)),
    **dict.fromkeys(_SWITCHES, ("true or false", _is_switch)),
    **dict.fromkeys(_TEXTS, ("a text", _is_text)),
    **dict.fromkeys(
        ("rope_parameters", "rope_scaling"), ("an object of RoPE settings with positive numbers", _is_rope)
    ),
    "layer_types": ("a list of texts", _is_list(_is_text)),
    "mlp_only_layers": ("a list of whole numbers", _is_list(_is_whole(0, _MOST_LAYERS))),
    "time_step_limit": ("a list of two numbers", _are_limits),
}
_WHOLE = frozenset((*_SIZES, *_COUNTS, *_LAYERS, *_EXPERTS))
