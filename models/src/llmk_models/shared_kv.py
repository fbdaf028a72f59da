"""Layers that read the keys and values of earlier ones (arXiv:2405.12981). Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmk.tree import Config


def sources(config: Config, kinds: Sequence[str], shared: int) -> tuple[int | None, ...]:
    """For each of the last ``shared`` layers, the last layer before them of the same kind, whose keys and values it
    reads; ``None`` for the others. Raises CheckpointError where there is none."""
    first = len(kinds) - shared
    found: list[int | None] = []
    for index, kind in enumerate(kinds):
        earlier = [other for other in range(max(0, first)) if kinds[other] == kind]
        if index >= first and not earlier:
            problem = f"num_hidden_layers = {len(kinds)}, num_kv_shared_layers = {shared}, and no layer before these"
            raise config.refuse(f"{problem} whose kind in layer_types is {kind!r}")
        found.append(earlier[-1] if index >= first else None)
    return tuple(found)


def ignored(at: str, found: Sequence[int | None]) -> tuple[str, ...]:
    """Regular expressions for the tensors that checkpoints have of layers that read others' keys and values, named
    ``at`` and a number, though they don't need them."""
    layers = "|".join(str(index) for index, source in enumerate(found) if source is not None)
    return (rf"{re.escape(at)}\.({layers})\.self_attn\.(k|v)_(proj|norm)\..*",) if layers else ()
