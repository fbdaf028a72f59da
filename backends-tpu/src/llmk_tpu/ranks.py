"""The devices that a program is spread over: each runs the same program on its share of weights and cache, and they add
up what they have (SPMD). With one device, nothing is added."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array, lax

from llmk.tree import Attend

AXIS = "tensor"
"""The name of the mesh's axis."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """``count`` devices, of which each runs what calls this."""

    count: int = 1

    def share(self, spec: Attend) -> Attend:
        """Attention of the heads that each device has; where there are more devices than heads of keys and values,
        several have the same."""
        return replace(spec, heads=spec.heads // self.count, kv_heads=max(1, spec.kv_heads // self.count))

    def sum(self, x: Array) -> Array:
        """The sum of all devices' arrays, on each."""
        if self.count == 1:
            return x
        found: Array = lax.psum(x, AXIS)  # type: ignore[no-untyped-call]
        return found

    def look_up(self, table: Array, ids: Array) -> Array:
        """Rows of a table, of which each device has some, in order."""
        if self.count == 1:
            return table[ids]
        own = ids - lax.axis_index(AXIS) * table.shape[0]
        is_here = (own >= 0) & (own < table.shape[0])
        return self.sum(jnp.where(is_here[:, None], table[jnp.clip(own, 0, table.shape[0] - 1)], 0))

    def join(self, columns: Array) -> Array:
        """All columns, of which each device has some, in order, on each."""
        return columns if self.count == 1 else lax.all_gather(columns, AXIS, axis=1, tiled=True)
