"""Which layers have a sliding window, and what is different in them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from llmk.tree import Config, Rope

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as ``layer_types`` names them."""


def layer_windows(config: Config, num_layers: int, window: int | None, first: int) -> tuple[int | None, ...]:
    """Each layer's sliding window, ``None`` for full attention: by ``layer_types`` if the config has it; else the
    layers from ``first`` on have the window. Raises CheckpointError."""
    types = _layer_types(config, num_layers)
    if not window:
        return (None,) * num_layers
    if not types:
        return tuple(window if layer >= first else None for layer in range(num_layers))
    return tuple(window if kind == SLIDING else None for kind in types)


def layer_kinds(config: Config, num_layers: int, period: int) -> tuple[str, ...]:
    """Each layer's kind: by ``layer_types`` if the config has it; else every ``period``-th layer has full attention,
    and the others have windows. Raises CheckpointError."""
    periodic = (SLIDING if (layer + 1) % period else FULL for layer in range(num_layers))
    kinds = _layer_types(config, num_layers) or tuple(periodic)
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise config.refuse(f"layer_types of {kind!r}, which is neither {FULL!r} nor {SLIDING!r}")
    return kinds


def sliding_rope(config: Config, full: Rope, theta: float) -> Rope:
    """RoPE of layers with a window, for families whose other layers have ``full``: by ``rope_parameters`` if the config
    has them for this kind; else not scaled. ``theta`` is ``rope_theta`` where that is not stated. Raises
    CheckpointError."""
    own = config.rope("rope_parameters").get(SLIDING)
    if not isinstance(own, Mapping):
        return Rope.with_settings(full.dim, full.positions, {"rope_type": "default", "rope_theta": theta})
    settings = Rope.of(config, full.dim, kind=SLIDING).parameters
    return Rope.with_settings(full.dim, full.positions, settings | {"rope_theta": own.get("rope_theta") or theta})


def _layer_types(config: Config, num_layers: int) -> tuple[str, ...]:
    types = config.texts("layer_types")
    if types and len(types) < num_layers:
        raise config.refuse(f"num_hidden_layers = {num_layers}, but layer_types of {len(types)} layers")
    return types[:num_layers]
