"""Which layers have a sliding window. Imports no torch."""

from __future__ import annotations

from llmk.tree import Config


def layer_windows(config: Config, num_layers: int, window: int | None, first: int) -> tuple[int | None, ...]:
    """Each layer's sliding window, ``None`` for full attention: by ``layer_types`` if the config has it; else the
    layers from ``first`` on have the window. Raises CheckpointError."""
    types = config.texts("layer_types")
    if types and len(types) < num_layers:
        raise config.refuse(f"num_hidden_layers = {num_layers}, but layer_types of {len(types)} layers")
    if not window:
        return (None,) * num_layers
    if not types:
        return tuple(window if layer >= first else None for layer in range(num_layers))
    return tuple(window if kind == "sliding_attention" else None for kind in types[:num_layers])
