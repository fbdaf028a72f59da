"""The devices of a program, as a mesh of one axis: where parameters and state lie, and how a step becomes one program
for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from llmk.api import SelectionError
from llmk_tpu.parameters import Cut, Parameters, map_cuts
from llmk_tpu.ranks import AXIS, Ranks
from llmk_tpu.shapes import Shape
from llmk_tpu.step import Program, State, run_step

_CACHE_HEADS = 2
"""The dimension of the cache along which devices have shares: heads."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a model is spread over."""

    mesh: Mesh

    @classmethod
    def of(cls, known: Sequence[Any], count: int) -> Devices:
        """The first ``count`` of the ``known`` devices. Raises SelectionError where there are fewer."""
        if len(known) < count:
            raise SelectionError(
                f"parallel.tensor = {count} needs as many devices, and JAX has {len(known)}",
                hint="lower parallel.tensor; JAX must not have been used before in a process that emulates several",
            )
        return cls(Mesh(np.array(known[:count]), (AXIS,)))

    @property
    def ranks(self) -> Ranks:
        """How many there are."""
        return Ranks(self.mesh.size)

    @property
    def state_shardings(self) -> Any:
        """Where the state lies, as a state: each device has the heads of the cache that it computes, and all tables."""
        return jax.tree.map(partial(NamedSharding, self.mesh), _state_specs())

    def cuts(self, own: Parameters) -> Any:
        """The partition of each parameter."""
        return map_cuts(lambda cut: _partition(cut.axis), own)

    def put(self, own: Parameters) -> Any:
        """Parameters on the devices."""
        return map_cuts(lambda cut: jax.device_put(cut.values, self._sharding(cut)), own)

    def abstract(self, own: Parameters) -> Any:
        """Shapes of parameters, as if they were on the devices."""
        return map_cuts(lambda cut: self._abstract(cut.values, self._sharding(cut)), own)

    def abstract_state(self, state: State) -> State:
        """The same of a state."""
        return State(*map(self._abstract, state, self.state_shardings))

    def jit(self, program: Program, shape: Shape, cuts: Any) -> Any:
        """The program of steps of a shape, which takes over the state. ``cuts`` are those of its parameters."""
        state, whole = _state_specs(), _partition(None)
        run = partial(run_step, program, shape)
        given, made = (cuts, state, whole), (state, whole)
        spread = jax.shard_map(run, mesh=self.mesh, in_specs=given, out_specs=made, check_vma=False)
        return jax.jit(spread, donate_argnums=1)

    def _sharding(self, cut: Cut) -> NamedSharding:
        return NamedSharding(self.mesh, _partition(cut.axis))

    def _abstract(self, values: Any, sharding: Any) -> Any:
        return jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def _partition(axis: int | None) -> PartitionSpec:
    names = () if axis is None else (*[None] * axis, AXIS)
    return PartitionSpec(*names)  # type: ignore[no-untyped-call]


def _state_specs() -> Any:
    """The partition of each array of a state."""
    make: Any = State
    return make(_partition(_CACHE_HEADS), _partition(None), _partition(None))
