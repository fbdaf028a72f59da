"""Reads ``config.json``: required keys, RoPE settings in old and new form. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from llmk.api import Checkpoint, CheckpointError
from llmk.api.errors import shown
from llmk_models.fields import NULL_COUNTS, whole, wrong

T = TypeVar("T")

_NEEDS_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")
_BY_LENGTH = ("longrope", "su")
_DTYPES = ("float32", "bfloat16", "float16")
LONGEST_CONTEXT = 1 << 26
"""Tokens; several times what any published model claims."""


def checked(read: Callable[[Checkpoint], T]) -> Callable[[Checkpoint], T]:
    """Decorates a function that reads a config: the function sees only values of the right types and in range, integers
    as ``int``, and no ``null`` where that means "not set".

    Raises CheckpointError that names the key.
    """

    @wraps(read)
    def read_checked(checkpoint: Checkpoint) -> T:
        config = {}
        for key, value in checkpoint.config.items():
            if value is not None and (wanted := wrong(key, value)):
                raise CheckpointError(
                    f"{checkpoint.path / 'config.json'} has {key} = {shown(value)}, which is not {wanted}",
                    hint="compare it with the config.json that the model's authors publish",
                )
            if value is not None or key in NULL_COUNTS:
                config[key] = whole(key, value)
        return read(replace(checkpoint, config=config))

    return read_checked


def required(checkpoint: Checkpoint, *keys: str) -> Any:
    """The value of the first of ``keys`` that the config contains. Raises CheckpointError if it contains none."""
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
    """A number of the config. Values that JSON can't represent are written by transformers 5 as ``{"__float__":
    "Infinity"}``."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def shared_heads(checkpoint: Checkpoint, num_heads: int, num_kv_heads: int) -> int:
    """``num_kv_heads``. Raises CheckpointError if ``num_heads`` is not a multiple of it."""
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'} has num_attention_heads = {num_heads}, which are not shared evenly by"
            f" num_key_value_heads = {num_kv_heads}",
            hint="compare it with the config.json that the model's authors publish",
        )
    return num_kv_heads


def head_size(checkpoint: Checkpoint, head_dim: int | None, hidden_size: int, num_heads: int) -> int:
    """``head_dim``, or ``hidden_size / num_heads``. Raises CheckpointError if that is not an integer."""
    size = head_dim or hidden_size // num_heads
    if not size:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'} has {num_heads} attention heads, but a hidden_size of {hidden_size}",
            hint="compare it with the config.json that the model's authors publish",
        )
    return size


def rope_parameters(config: Mapping[str, Any], default_theta: float = 10000.0) -> dict[str, Any]:
    """Rotary settings in the form of ``transformers`` 5: ``rope_type``, ``rope_theta`` and what the type needs.

    Uses ``rope_parameters`` if the config has it; else ``rope_scaling`` (``type`` or ``rope_type``) and ``rope_theta``.
    Raises :class:`~llmk.api.CheckpointError` if layers of different kinds have different settings.
    """
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in stored.values()):
        raise CheckpointError(
            f"config.json has different RoPE settings for each kind of layer ({', '.join(stored)})",
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


def default_length(config: Mapping[str, Any], longest: int) -> tuple[int, str]:
    """The default maximum length, if it is not ``longest``, and the reason; (0, "") if it is.

    LongRoPE has factors for texts up to the original length, and others for longer ones. ``transformers`` chooses them
    by the text's length, and recomputes the text when it grows longer. Here, cached keys must stay valid, so the
    maximum served length decides for all texts.
    """
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for rope in (stored, *(each for each in stored.values() if isinstance(each, Mapping))):
        if (rope.get("rope_type") or rope.get("type")) in _BY_LENGTH:
            original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
            if original and original < longest:
                return int(original), (
                    f"up to {original} tokens LongRoPE uses its short factors; with a larger"
                    " --model.max-model-len, all texts use its long factors"
                )
    return 0, ""


def context_length(max_position: int, rope: Mapping[str, Any]) -> int:
    """Maximum number of positions. A YaRN checkpoint may still state the length before the extension."""
    if rope.get("rope_type") != "yarn":
        return max_position
    stretched = rope.get("original_max_position_embeddings", max_position) * rope.get("factor", 1.0)
    return int(min(max(max_position, stretched), LONGEST_CONTEXT))


def layer_windows(config: Mapping[str, Any], num_layers: int, window: int | None, first: int) -> tuple[int | None, ...]:
    """Each layer's sliding window, ``None`` for full attention.

    From ``layer_types`` if the config has it; else the layers from ``first`` on have the window.
    """
    types = config.get("layer_types")
    if types is not None and len(types) < num_layers:
        raise CheckpointError(
            f"config.json has num_hidden_layers = {num_layers}, but layer_types of {len(types)} layers",
            hint="compare it with the config.json that the model's authors publish",
        )
    if not window:
        return (None,) * num_layers
    if types is None:
        return tuple(window if i >= first else None for i in range(num_layers))
    return tuple(window if kind == "sliding_attention" else None for kind in types[:num_layers])
