"""Brings a checkpoint's tensors into a model: checked before any is read, cast on the way, prepared layer by layer.

Only one layer exists twice at any time: its tensors are let go as soon as its kernel has made of them what it wants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from llmk.api import Checkpoint, CheckpointError
from llmk.nn.layer import STORED_DTYPES
from llmk.nn.model import SelfLoading
from llmk.nn.tensor_file import StoredTensor, read_headers, weight_files

if TYPE_CHECKING:
    from llmk.nn.layer import Layer, Parameter
    from llmk.nn.model import Model

_WIDE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_LISTED = 10


@dataclass(frozen=True, slots=True)
class _Slices:
    """A file's tensor, read as it is indexed."""

    shape: tuple[int, ...]
    _slice: Any

    def __getitem__(self, index: Any) -> torch.Tensor:
        values: torch.Tensor = self._slice[index]
        return values


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a checkpoint tensor goes."""

    layer: Layer
    parameter: Parameter
    shards: tuple[int, ...]


def load_weights(
    model: Model,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: bool = True,
    *,
    load_format: str = "safetensors",
    seed: int = 0,
) -> None:
    """Fills all of the model's parameters and prepares them for their kernels.

    Args:
        dtype: the engine's dtype, in which floating-point tensors are kept whatever the checkpoint stores.
        progress: show a bar on stderr where that is a terminal.
        load_format: ``"safetensors"``, or ``"dummy"`` for normal random values (standard deviation 0.02, norms 1) drawn
            from ``seed`` and each tensor's name.

    Raises:
        CheckpointError: where a file is missing, truncated or damaged, or its tensors are not the model's.
    """
    if isinstance(model, SelfLoading):
        model.load(checkpoint, dtype, seed if load_format == "dummy" else None)
    elif load_format == "dummy":
        _fill(model.weights, seed, progress)
    else:
        _load(model, checkpoint, progress)


def _fill(layers: Sequence[Layer], seed: int, progress: bool) -> None:
    here = [layer for layer in layers if layer.here and layer.parameters]
    for layer in tqdm(here, "Random weights", disable=_hidden(progress), unit="layer"):
        for parameter in layer.parameters:
            parameter.fill(seed)
        layer.finish()


def _load(model: Model, checkpoint: Checkpoint, progress: bool) -> None:
    stored = read_headers(weight_files(checkpoint))
    by_prefix: dict[str, list[StoredTensor]] = {}
    for tensor in stored:
        by_prefix.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    for layer in model.weights:
        layer.discover(by_prefix)
    # What two layers know by the same name, as tied ones do, goes to the one that is here.
    targets = {
        name: _Target(layer, parameter, shards)
        for layer in sorted(model.weights, key=lambda layer: layer.here)
        for parameter in layer.parameters
        for name, shards in parameter.targets.items()
    }
    wanted = [tensor for tensor in stored if tensor.name in targets and targets[tensor.name].layer.here]
    _check(checkpoint, stored, targets, model.ignored_weights)
    total = sum(tensor.stop - tensor.start for tensor in wanted)
    with tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, disable=_hidden(progress)) as bar:
        for file, tensors in groupby(wanted, key=lambda tensor: tensor.file):
            _load_file(file, tensors, targets, bar)


def _load_file(file: Path, tensors: Iterable[StoredTensor], targets: dict[str, _Target], bar: tqdm) -> None:
    try:
        with safe_open(file, framework="pt") as reader:
            for tensor in tensors:
                target = targets[tensor.name]
                if not target.parameter.complete:
                    target.parameter.load(target.shards, _Slices(tensor.shape, reader.get_slice(tensor.name)))
                    if all(parameter.complete for parameter in target.layer.parameters):
                        target.layer.finish()
                bar.update(tensor.stop - tensor.start)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} can't be read: {error}", hint="download or copy the file again") from error


def _check(
    checkpoint: Checkpoint, stored: Sequence[StoredTensor], targets: dict[str, _Target], ignored: Sequence[str]
) -> None:
    """Compares what the files hold with what the model wants, by their headers alone."""
    files = sorted({tensor.file.name for tensor in stored})
    where = f"{checkpoint.path} ({_listed(files, 3)})"
    present: dict[Parameter, set[int]] = {target.parameter: set() for target in targets.values()}
    unexpected = []
    for tensor in stored:
        if target := targets.get(tensor.name):
            _check_one(tensor, target)
            present[target.parameter].update(target.shards)
        elif not any(re.fullmatch(pattern, tensor.name) for pattern in ignored):
            unexpected.append(tensor.name)
    missing = [name for p, shards in present.items() for i, name in enumerate(p.names) if i not in shards]
    extra = f"{len(unexpected)} tensors that {checkpoint.architecture} has no place for: {_listed(unexpected)}"
    if missing:
        raise CheckpointError(
            f"{where} lacks {len(missing)} of the tensors that {checkpoint.architecture} needs: {_listed(missing)}"
            + (f". It holds {extra}" if unexpected else ""),
            hint="check that the download is complete and that config.json belongs to these weights",
        )
    if unexpected:
        raise CheckpointError(
            f"{where} holds {extra}",
            hint="check that config.json (architectures, biases, number of layers) belongs to these weights",
        )


def _check_one(tensor: StoredTensor, target: _Target) -> None:
    if not target.parameter.fits(target.shards, tensor.shape):
        raise CheckpointError(
            f"tensor {tensor.name!r} in {tensor.file} has shape {list(tensor.shape)}, not "
            f"{list(target.parameter.shape(target.shards))} as config.json says",
            hint="check that config.json belongs to these weights",
        )
    wanted, found = target.parameter.dtype, STORED_DTYPES.get(tensor.dtype)
    if found != wanted and not (found in _WIDE and wanted in _WIDE):
        raise CheckpointError(
            f"tensor {tensor.name!r} in {tensor.file} is stored as {tensor.dtype}, which does not become {wanted}",
            hint="quantized weights need a plugin that knows their format, and a quantization_config in config.json",
        )


def _hidden(progress: bool) -> bool | None:
    """tqdm's ``disable``: ``None`` hides the bar where stderr is no terminal."""
    return None if progress else True


def _listed(names: Sequence[str], most: int = _LISTED) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
