"""The parameters of a model's program, from the tensors of a checkpoint. Needs no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import groupby
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


def model_parameters(model: tree.CausalLM, weights: Mapping[str, Any], dtype: str, arrays: Any = np) -> Parameters:
    """All parameters: ``embed``, ``norm`` and ``head``, and for each run of alike layers, those of its parts, stacked.

    Args:
        weights: arrays by the names of the tree's weight map.
        dtype: of all parameters.
        arrays: the module that makes arrays: ``numpy``, or ``jax.numpy`` inside of a program.
    """
    runs = [list(run) for _, run in groupby(model.layers, key=tree.nameless)]
    own = partial(parameters, weights=weights, dtype=dtype, arrays=arrays)
    return {
        "embed": own(model.embed),
        "runs": [_stacked([[own(part) for part in layer] for layer in run], arrays) for run in runs],
        "norm": own(model.norm),
        "head": own(model.head),
    }


def parameters(spec: tree.Spec, weights: Mapping[str, Any], dtype: str, arrays: Any) -> Parameters:
    """The parameters of a spec and its parts, from the checkpoint's tensors by name."""

    def array(name: str) -> Any:
        return arrays.asarray(weights[name]).astype(dtype, copy=False)

    if isinstance(spec, tree.Linear):
        kinds = ("weight", "bias") if spec.bias else ("weight",)
        return {kind: arrays.concatenate([array(f"{name}.{kind}") for name in spec.modules]) for kind in kinds}
    if isinstance(spec, tree.Experts):
        # As grouped GEMMs take them: [experts, inputs, outputs].
        each = [
            [array(f"{spec.at}.{expert}.{name}.weight").T for name in spec.names]
            for expert in range(spec.facts.num_experts)
        ]
        gate_up = [arrays.concatenate((gate, up), axis=1) for gate, up, _ in each]
        return {"gate_up": arrays.stack(gate_up), "down": arrays.stack([down for _, _, down in each])}
    own = {tensor.name.removeprefix(f"{spec.at}."): array(tensor.name) for tensor in spec.tensors()}
    parts = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return own | {
        name: parameters(part, weights, dtype, arrays) for name, part in parts.items() if isinstance(part, tree.Spec)
    }


def _stacked(layers: Sequence[Any], arrays: Any) -> Any:
    """Parameters of layers that are alike, each with a first dimension for the layer."""
    first = layers[0]
    if isinstance(first, dict):
        return {name: _stacked([layer[name] for layer in layers], arrays) for name in first}
    if isinstance(first, list):
        return [_stacked([layer[part] for layer in layers], arrays) for part in range(len(first))]
    return arrays.stack(layers)
