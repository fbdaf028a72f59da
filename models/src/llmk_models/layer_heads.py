"""Heads of layers without a window, where a config states them layer by layer. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmk.tree import Config, Heads
from llmk_models.windows import FULL


def stated_sizes(config: Config, heads: Heads, kinds: Sequence[str]) -> tuple[int, int] | None:
    """Key-value heads, and the size of a head, of layers without a window, by ``per_layer_config``, which states what
    differs from ``heads``; ``None``: the config has no such key. Raises CheckpointError for what differs in other
    ways."""
    each = config.values.get("per_layer_config")
    if not isinstance(each, Mapping):
        return None
    usual, found = (heads.kv, heads.dim), set()
    by_layer = {int(index): own for index, own in each.items() if index.isdecimal() and isinstance(own, Mapping)}
    for index, kind in enumerate(kinds):
        own = by_layer.get(index, {})
        sizes = (own.get("num_key_value_heads", usual[0]), own.get("head_dim", usual[1]))
        found |= {sizes} if kind == FULL else set()
        if kind != FULL and sizes != usual:
            raise config.unsupported("per_layer_config and layer_types: other heads in a layer with a window")
    if len(found) > 1:
        raise config.unsupported("per_layer_config and layer_types: heads that differ between layers without a window")
    return next(iter(found), usual)
