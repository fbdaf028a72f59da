"""What a cluster lacks for the places that are wanted, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lacking(ray: Any, bundle: Mapping[str, float], count: int, strategy: str) -> str:
    """What is missing, in words: what each node has of what a rank takes, and how much of it is free."""
    free = ray._private.state.available_resources_per_node()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    said = [_node(node, free.get(node["NodeID"], {}), bundle) for node in nodes]
    fits = [_ranks(free.get(node["NodeID"], {}), bundle) for node in nodes]
    takes = " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
    summary = f"each takes {takes}, {strategy.lower()}ed, and there is room for {_room(fits, strategy)} of {count}"
    return "; ".join([summary, *said])


def _node(node: Mapping[str, Any], free: Mapping[str, float], bundle: Mapping[str, float]) -> str:
    has = (f"{free.get(name, 0):g} of {node['Resources'].get(name, 0):g} {name}" for name in bundle)
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}) has free {', '.join(has)}"


def _ranks(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """How many ranks fit a node."""
    return min((int(free.get(name, 0) / amount) for name, amount in bundle.items() if amount), default=0)


def _room(fits: list[int], strategy: str) -> int:
    if strategy == "STRICT_PACK":
        return max(fits, default=0)
    return sum(map(bool, fits)) if strategy == "STRICT_SPREAD" else sum(fits)
