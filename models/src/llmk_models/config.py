"""Reading ``config.json``: keys that must be there, rotary settings in old and new spelling. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from llmk.api import Checkpoint, CheckpointError

T = TypeVar("T")

_NEEDS_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")
_DTYPES = ("float32", "bfloat16", "float16")
_SIZES = {
    "hidden_size", "n_embd", "d_model", "intermediate_size", "vocab_size", "head_dim", "expand",
    "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "num_hidden_layers", "n_layer", "n_layers",
    "num_layers", "num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "num_kv_heads",
    "n_head_kv", "sliding_window", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
    "decoder_sparse_step", "moe_layer_freq", "n_group", "topk_group", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_groups", "state_size", "conv_kernel",
    "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "full_attention_interval", "query_pre_attn_scalar", "original_max_position_embeddings",
}  # fmt: skip
_COUNTS = {
    "num_experts", "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "max_window_layers",
    "shared_expert_intermediate_size",
}  # fmt: skip
_NUMBERS = {
    "rms_norm_eps", "layer_norm_epsilon", "rope_theta", "partial_rotary_factor", "attn_logit_softcapping",
    "final_logit_softcapping", "routed_scaling_factor", "attention_multiplier",
}  # fmt: skip
_LISTS = {"layer_types", "mlp_only_layers", "time_step_limit"}
_OBJECTS = {"rope_parameters", "rope_scaling"}
"""What the families read, by what it must be."""
_NULL_COUNTS = {
    "head_dim", "num_key_value_heads", "num_kv_heads", "n_head_kv", "q_lora_rank", "n_routed_experts",
    "n_shared_experts", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
}  # fmt: skip
"""Keys of which ``null`` says something else than silence."""


def checked(read: Callable[[Checkpoint], T]) -> Callable[[Checkpoint], T]:
    """Of a function that reads a config: it sees values of the right types alone, and no ``null`` that says nothing.

    Raises CheckpointError that names the key.
    """

    @wraps(read)
    def read_checked(checkpoint: Checkpoint) -> T:
        config = {}
        for key, value in checkpoint.config.items():
            if value is not None and (wanted := _wrong(key, value)):
                raise CheckpointError(
                    f"{checkpoint.path / 'config.json'} has {key} = {value!r}, which is not {wanted}",
                    hint="compare it with the config.json that the model's authors publish",
                )
            if value is not None or key in _NULL_COUNTS:
                config[key] = value
        return read(replace(checkpoint, config=config))

    return read_checked


def _wrong(key: str, value: Any) -> str:
    """What a key's value must be, in words, where it is not; else empty."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _SIZES:
        return "" if is_number and value > 0 else "a number above 0"
    if key in _COUNTS:
        return "" if is_number and value >= 0 else "a number, 0 or more"
    if key in _NUMBERS:
        return "" if is_number else "a number"
    if key in _LISTS:
        return "" if isinstance(value, (list, tuple)) else "a list"
    if key in _OBJECTS:
        return "" if isinstance(value, Mapping) else "an object"
    return ""


def required(checkpoint: Checkpoint, *keys: str) -> Any:
    """The value of the first of ``keys`` that the config has. Raises CheckpointError where it has none."""
    for key in keys:
        if checkpoint.config.get(key) is not None:
            return checkpoint.config[key]
    raise CheckpointError(
        f"{checkpoint.path / 'config.json'} has no {' or '.join(repr(key) for key in keys)},"
        f" which {checkpoint.architecture or 'a decoder'} needs",
        hint="download the checkpoint again, or complete its config.json",
    )


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that the config states, under its new or its old name; ``"float32"`` where it states none."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return dtype if dtype in _DTYPES else "float32"


def number(value: Any) -> float:
    """A number of the config. What JSON has none for, transformers 5 writes as ``{"__float__": "Infinity"}``."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def rope_parameters(config: Mapping[str, Any], default_theta: float = 10000.0) -> dict[str, Any]:
    """Rotary settings in the form of ``transformers`` 5: ``rope_type``, ``rope_theta`` and what the type needs.

    ``rope_parameters`` is taken where it stands; else ``rope_scaling`` (``type`` or ``rope_type``) and ``rope_theta``.
    Raises :class:`~llmk.api.CheckpointError` where they differ by kind of layer.
    """
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in stored.values()):
        raise CheckpointError(
            f"config.json gives each kind of layer rotary settings of its own ({', '.join(stored)})",
            hint="serve it through transformers: --select.model.use models.transformers",
        )
    parameters = {"rope_theta": config.get("rope_theta") or default_theta, **stored}
    parameters["rope_type"] = stored.get("rope_type") or stored.get("type") or "default"
    if config.get("partial_rotary_factor") is not None:
        parameters.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if parameters["rope_type"] in _NEEDS_ORIGINAL_LENGTH:
        original = config.get("original_max_position_embeddings")
        if original is not None:
            parameters["original_max_position_embeddings"] = original
        elif config.get("max_position_embeddings") is not None:
            parameters.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    return parameters


def context_length(max_position: int, rope: Mapping[str, Any]) -> int:
    """Tokens that rotary positions reach: a YaRN checkpoint may still state the length from before it was stretched."""
    if rope.get("rope_type") != "yarn":
        return max_position
    stretched = rope.get("original_max_position_embeddings", max_position) * rope.get("factor", 1.0)
    return max(max_position, int(stretched))


def layer_windows(config: Mapping[str, Any], num_layers: int, window: int | None, first: int) -> tuple[int | None, ...]:
    """Each layer's sliding window, ``None`` for full attention.

    ``layer_types`` decides where the config has it; else the layers from ``first`` on slide.
    """
    types = config.get("layer_types")
    if window is None:
        return (None,) * num_layers
    if types is None:
        return tuple(window if i >= first else None for i in range(num_layers))
    return tuple(window if kind == "sliding_attention" else None for kind in types[:num_layers])
