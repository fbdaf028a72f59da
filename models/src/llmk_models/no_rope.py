"""Which layers rotate queries and keys, in families that leave it out in some (NoPE, arXiv:2305.19466). Imports no
torch."""

from __future__ import annotations

from llmk.tree import Config


def rotated_layers(config: Config, num_layers: int) -> tuple[bool, ...]:
    """Whether each layer rotates: by ``no_rope_layers`` if the config has it, whose 1 means so; else all but every
    ``no_rope_layer_interval``-th do. Raises CheckpointError."""
    interval, stated = config.size("no_rope_layer_interval", 4), config.counts("no_rope_layers")
    if stated and len(stated) < num_layers:
        raise config.refuse(f"num_hidden_layers = {num_layers}, but no_rope_layers of {len(stated)} layers")
    flags = stated[:num_layers] or tuple((index + 1) % interval for index in range(num_layers))
    return tuple(map(bool, flags))
