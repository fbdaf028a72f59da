"""The parameters of a model's program, from the tensors of a checkpoint. Needs no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401 -- teaches numpy bfloat16
import numpy as np

from llmk import tree

Parameters = dict[str, Any]
"""Arrays, or the parameters of parts, by name."""


class Run(NamedTuple):
    """Layers in a row that are alike (:func:`llmk.tree.nameless`), and so are compiled once: the first of them, and how
    many they are."""

    layer: tuple[tree.Residual | tree.Spec, ...]
    length: int


def runs_of(model: tree.CausalLM) -> list[Run]:
    """The runs of a model's layers, in order."""
    runs = (list(run) for _, run in groupby(model.layers, key=tree.nameless))
    return [Run(run[0], len(run)) for run in runs]


@dataclass(frozen=True, slots=True)
class Cut:
    """A parameter of all devices: its ``values``, and the ``axis`` along which each has an equal share, in order;
    ``None``: each has all."""

    values: Any
    axis: int | None = None


def model_parameters(
    model: tree.CausalLM, weights: Mapping[str, Any], dtype: str, arrays: Any = np, ranks: int = 1
) -> Parameters:
    """All parameters: ``embed``, ``norm`` and ``head``, and for each run of alike layers, those of its parts, stacked;
    each as a :class:`Cut`.

    Args:
        weights: arrays by the names of the tree's weight map.
        dtype: of all parameters.
        arrays: the module that makes arrays: ``numpy``, or ``jax.numpy`` inside of a program.
        ranks: devices that share them. What each has is adjacent: of packed projections, its part of each.
    """
    runs = [list(run) for _, run in groupby(model.layers, key=tree.nameless)]
    own = partial(parameters, make=_Make(weights, dtype, arrays, ranks))
    return {
        "embed": own(model.embed),
        "runs": [_stacked([[own(part) for part in layer] for layer in run], arrays) for run in runs],
        "norm": own(model.norm),
        "head": own(model.head),
    }


def values_of(own: Any) -> Any:
    """The values of parameters alone."""
    return map_cuts(lambda cut: cut.values, own)


def map_cuts(function: Callable[[Cut], Any], own: Any) -> Any:
    """Parameters, with what a function makes of each :class:`Cut` in its place."""
    if isinstance(own, Cut):
        return function(own)
    if isinstance(own, dict):
        return {name: map_cuts(function, each) for name, each in own.items()}
    return [map_cuts(function, each) for each in own]


class _Make(NamedTuple):
    """Makes parameters of the checkpoint's tensors."""

    weights: Mapping[str, Any]
    dtype: str
    arrays: Any
    ranks: int

    def array(self, name: str) -> Any:
        return self.arrays.asarray(self.weights[name]).astype(self.dtype, copy=False)

    def join(self, parts: Sequence[Any], axis: int, units: Sequence[int]) -> Any:
        """Parts side by side, for each device what it has of each. Where a part has fewer units (heads) than there are
        devices, several devices have the same."""
        shares = [
            [self._share(part, axis, count, rank) for part, count in zip(parts, units, strict=True)]
            for rank in range(self.ranks)
        ]
        return self.arrays.concatenate([share for own in shares for share in own], axis=axis)

    def _share(self, part: Any, axis: int, units: int, rank: int) -> Any:
        shares = min(self.ranks, units)
        size = part.shape[axis] // shares
        start = rank * shares // self.ranks * size
        return part[(slice(None),) * axis + (slice(start, start + size),)]


def parameters(spec: tree.Spec, make: _Make) -> Parameters:
    """The parameters of a spec and its parts."""
    if isinstance(spec, tree.Linear):
        return _linear(spec, make)
    if isinstance(spec, tree.Experts):
        # As grouped GEMMs take them: [experts, inputs, outputs].
        each = [
            [make.array(f"{spec.at}.{expert}.{name}.weight").T for name in spec.names]
            for expert in range(spec.facts.num_experts)
        ]
        units = (spec.facts.intermediate_size,) * 2
        gate_up = [make.join((gate, up), 1, units) for gate, up, _ in each]
        down = make.arrays.stack([down for _, _, down in each])
        return {"gate_up": Cut(make.arrays.stack(gate_up), 2), "down": Cut(down, 1)}
    own = {tensor.name.removeprefix(f"{spec.at}."): Cut(make.array(tensor.name)) for tensor in spec.tensors()}
    if isinstance(spec, tree.Embedding | tree.Head) and make.ranks > 1:
        own = {name: Cut(_padded(cut.values, make), 0) for name, cut in own.items()}
    parts = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return own | {name: parameters(part, make) for name, part in parts.items() if isinstance(part, tree.Spec)}


def _linear(spec: tree.Linear, make: _Make) -> Parameters:
    kinds = ("weight", "bias") if spec.bias else ("weight",)
    parts = {kind: [make.array(f"{name}.{kind}") for name in spec.modules] for kind in kinds}
    whole = {kind: make.arrays.concatenate(each) for kind, each in parts.items()}
    if spec.cut == "column":
        ends, units = [*accumulate(part.rows for part in spec.outputs)][:-1], [part.units for part in spec.outputs]
        packed = {kind: make.arrays.split(each, ends) for kind, each in whole.items()}
        return {kind: Cut(make.join(each, 0, units), 0) for kind, each in packed.items()}
    return {kind: Cut(each, 1 if spec.cut == "row" and kind == "weight" else None) for kind, each in whole.items()}


def _padded(table: Any, make: _Make) -> Any:
    """A table with zeros below, so that all devices have as many rows."""
    return make.arrays.pad(table, ((0, -table.shape[0] % make.ranks), (0, 0)))


def _stacked(layers: Sequence[Any], arrays: Any) -> Any:
    """Parameters of layers that are alike, each with a first dimension for the layer."""
    first = layers[0]
    if isinstance(first, Cut):
        axis = None if first.axis is None else first.axis + 1
        return Cut(arrays.stack([cut.values for cut in layers]), axis)
    if isinstance(first, dict):
        return {name: _stacked([layer[name] for layer in layers], arrays) for name in first}
    return [_stacked([layer[part] for layer in layers], arrays) for part in range(len(first))]
