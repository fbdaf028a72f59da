"""Loads adapters: their tensors are checked by name, shape and dtype before any weight is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn.adapted_linear import AdaptedLinear
from llmk.nn.layer import stored_dtype
from llmk.nn.tensor_file import read_headers
from llmk.planning.adapters import CONFIG, Adapter, Target, errors_of

if TYPE_CHECKING:
    from llmk.nn.build import Build

_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_LISTED = 10
_WIDE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}

Pair = dict[str, StoredTensor]
"""Matrices ``"A"`` and ``"B"`` of a projection."""


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """Where two matrices of an adapter belong: at ``parts`` (one projection, or all) of ``layer``."""

    layer: AdaptedLinear
    name: str
    number: int
    parts: Sequence[int]
    pair: Pair
    scale: float


def place_adapters(adapters: Sequence[Adapter], build: Build) -> list[PlacedAdapter]:
    """The tensors of adapters, and where they belong in the layers that were built.

    Raises:
        ConfigError: a file is damaged; a tensor is missing, has no place, or another shape or dtype than the adapter's
            config and the model say.
    """
    layers = [layer for layer in build.layers if isinstance(layer, AdaptedLinear)]
    placed: list[PlacedAdapter] = []
    for number, adapter in enumerate(adapters):
        with errors_of(adapter.name):
            placed += _place(number, adapter, layers)
    return placed


def load_adapters(placed: Sequence[PlacedAdapter], build: Build) -> None:
    """Reads the tensors of this process's layers. Raises ConfigError for one that can't be read, or is not
    finite."""
    for layer in build.layers:
        if isinstance(layer, AdaptedLinear) and layer.here:
            layer.allocate()
    for each in placed:
        layer = each.layer
        if layer.here:
            with errors_of(each.name):
                a, b = (_read(each.pair[name], build.dtype) for name in "AB")
            for part, own in zip(each.parts, b.split(_rows(layer, each.parts)), strict=True):
                layer.put(each.number, part, a, own, each.scale)


def _place(number: int, adapter: Adapter, layers: Sequence[AdaptedLinear]) -> Iterator[PlacedAdapter]:
    stored = _stored(adapter)
    left, missing = dict(stored), []
    for layer in layers:
        for name, parts in _wanted(adapter, layer, stored):
            pair, target = left.pop(name, {}), adapter.targets[name]
            if lacking := [f"base_model.model.{name}.lora_{which}.weight" for which in "AB" if which not in pair]:
                missing += lacking
            else:
                _check(pair, target, layer.in_features, sum(_rows(layer, parts)))
                yield PlacedAdapter(layer, adapter.name, number, parts, pair, target.scale)
    if missing:
        raise CheckpointError(
            f"{adapter.weights} lacks {len(missing)} of the tensors that its {CONFIG} says: {_listed(missing)}",
            hint="check that the download is complete and that both files belong together",
        )
    if left:
        raise _out_of_place(adapter, [tensor.name for pair in left.values() for tensor in pair.values()])


def _wanted(adapter: Adapter, layer: AdaptedLinear, stored: Mapping[str, Pair]) -> list[tuple[str, Sequence[int]]]:
    """The names under which an adapter must store its matrices for a layer, and the projections that each is for."""
    whole = [name for name in layer.whole_names if name in adapter.targets]
    apart = [(name, (part,)) for part, name in enumerate(layer.projections) if name in adapter.targets]
    found = [name for name in whole if name in stored]
    if found or not apart:
        return [(name, range(len(layer.projections))) for name in (found or whole)[:1]]
    return [*apart]


def _rows(layer: AdaptedLinear, parts: Sequence[int]) -> list[int]:
    """Output features of projections."""
    rows = list(layer.projections.values())
    return [rows[part] for part in parts]


def _stored(adapter: Adapter) -> dict[str, Pair]:
    """The tensors of an adapter's file, by projection."""
    found: dict[str, Pair] = {}
    others = []
    for tensor in read_headers([adapter.weights]):
        if match := _NAME.fullmatch(tensor.name):
            found.setdefault(match[1], {})[match[2]] = tensor
        else:
            others.append(tensor.name)
    if others:
        raise _out_of_place(adapter, others)
    return found


def _check(pair: Pair, target: Target, in_features: int, rows: int) -> None:
    for which, wanted in (("A", (target.rank, in_features)), ("B", (rows, target.rank))):
        tensor = pair[which]
        if tensor.shape != wanted:
            why = f"rank {target.rank} ({CONFIG}) and {in_features} to {rows} features (the model)"
            raise CheckpointError(
                f"tensor {tensor.name!r} in {tensor.file} has shape {list(tensor.shape)}, not {list(wanted)}, by {why}",
                hint="check that the adapter was trained on this model, and that its two files belong together",
            )
        if stored_dtype(tensor) not in _WIDE:
            raise CheckpointError(
                f"tensor {tensor.name!r} in {tensor.file} is stored as {tensor.dtype}",
                hint="save the adapter in float32, bfloat16 or float16",
            )


def _read(tensor: StoredTensor, dtype: torch.dtype) -> Tensor:
    with tensor.file.open() as stream:
        stream.seek(tensor.start)
        data = bytearray(stream.read(tensor.num_bytes))
    if len(data) < tensor.num_bytes:
        raise CheckpointError(f"{tensor.file} became shorter while it was read", hint="load it again")
    values = torch.frombuffer(data, dtype=stored_dtype(tensor)).view(tensor.shape).to(dtype)
    if not values.isfinite().all():
        raise CheckpointError(
            f"tensor {tensor.name!r} in {tensor.file} has values that are not finite in {dtype}",
            hint="such an adapter would make all results invalid; check where it is from",
        )
    return values


def _out_of_place(adapter: Adapter, names: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{adapter.weights} holds {len(names)} tensors that the model has no place for: {_listed(names)}",
        hint="check that the adapter is of this model; it may change linear layers, not experts or embeddings",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
