"""Reading ``config.json``: keys that must be there, rotary settings in old and new spelling. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import Checkpoint, CheckpointError

_NEEDS_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")
_DTYPES = ("float32", "bfloat16", "float16")


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
