"""Loads a checkpoint's tensors into a model: checked before any is read, cast on the way, prepared layer by layer.

Few layers exist twice at any time: a layer's tensors are let go as soon as its kernel has made of them what it wants,
and no more than a set number of bytes is read meanwhile.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import torch
from tqdm import tqdm

from llmk.api import Checkpoint, CheckpointError, DecodeRows, StoredTensor
from llmk.engine.device.file_reader import CHUNK_BYTES, Chunk, FileReader, Mapped, map_file
from llmk.nn.layer import STORED_DTYPES, Place
from llmk.nn.model import SelfLoading
from llmk.nn.tensor_file import stored_tensors

if TYPE_CHECKING:
    from llmk.nn.layer import Layer, Parameter
    from llmk.nn.model import Model
    from llmk.nn.quantization import Quantization

logger = logging.getLogger(__name__)

_WIDE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_LISTED = 10
_BASE = "model."


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a checkpoint tensor goes."""

    layer: Layer
    parameter: Parameter
    shards: tuple[int, ...]


_Wanted = tuple[StoredTensor, _Target]


class Loaded(NamedTuple):
    """Bytes that were read of files, and bytes of weights that lie in files for good, which systems count as free."""

    read: int = 0
    in_files: int = 0


def load_weights(
    model: Model,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: bool = True,
    *,
    load_format: str = "safetensors",
    seed: int = 0,
    methods: Collection[Quantization] = (),
) -> Loaded:
    """Fills all of the model's parameters and prepares them for their kernels.

    Args:
        dtype: the engine's dtype, in which floating-point tensors are kept no matter what the checkpoint stores.
        progress: show a bar on stderr where that is a terminal.
        load_format: ``"safetensors"``, or ``"dummy"`` for normal random values (standard deviation 0.02, norms 1) drawn
            from ``seed`` and each tensor's name.
        methods: the quantization methods, for warnings about entries of the config's lists that match no module.

    Raises:
        CheckpointError: where a file is missing, truncated or damaged, or its tensors are not the model's.
    """
    if isinstance(model, SelfLoading):
        model.load(checkpoint, dtype, seed if load_format == "dummy" else None)
    elif load_format == "dummy":
        _fill(model.weights, seed, progress)
    else:
        return _load(model, checkpoint, progress, methods)
    return Loaded()


def _fill(layers: Sequence[Layer], seed: int, progress: bool) -> None:
    here = [layer for layer in layers if layer.here and layer.parameters]
    for layer in tqdm(here, "Random weights", disable=_hidden(progress), unit="layer"):
        for parameter in layer.parameters:
            parameter.fill(seed)
        layer.finish()


def _load(model: Model, checkpoint: Checkpoint, progress: bool, methods: Collection[Quantization]) -> Loaded:
    by_prefix: dict[str, list[StoredTensor]] = {}
    for tensor in _rooted(stored_tensors(checkpoint), model):
        by_prefix.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    for module, tensors in by_prefix.items():
        for method in methods:
            tensors[:] = method.present(module, tensors)
    stored = [tensor for tensors in by_prefix.values() for tensor in tensors]
    for entry in dict.fromkeys(entry for method in methods for entry in method.unmatched(by_prefix)):
        logger.warning("quantization_config in %s names %r, which matches no module", checkpoint.path, entry)
    for layer in model.weights:
        layer.discover(by_prefix)
    targets: dict[str, list[_Target]] = {}
    for layer in model.weights:
        for parameter in layer.parameters:
            for name, shards in parameter.targets.items():
                targets.setdefault(name, []).append(_Target(layer, parameter, shards))
    _check(checkpoint, stored, targets, model.ignored_weights, methods)
    wanted = list(_wanted(stored, targets))
    total = sum(tensor.num_bytes for tensor, _ in wanted)
    bar = tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, disable=_hidden(progress))
    mapped: list[ref[mmap]] = []
    with bar, FileReader() as reader:
        for tensor, target in reader.read(_to_read(wanted, mapped)):
            target.parameter.mark_loaded(target.shards)
            if all(parameter.complete for parameter in target.layer.parameters):
                target.layer.finish()
            bar.update(tensor.num_bytes)
    return Loaded(total, sum(len(pages) for each in mapped if (pages := each()) is not None))


def _rooted(stored: Sequence[StoredTensor], model: Model) -> Sequence[StoredTensor]:
    """The tensors by the names that the model knows: files of a base model leave out the module that it is in others,
    with which the names of ``model``'s parameters start."""
    names = {name for layer in model.weights for parameter in layer.parameters for name in parameter.targets}
    found = {tensor.name for tensor in stored}
    if found & names or not any(f"{_BASE}{name}" in names for name in found):
        return stored
    return [replace(tensor, name=f"{_BASE}{tensor.name}") for tensor in stored]


def _wanted(
    stored: Sequence[StoredTensor], targets: Mapping[str, Sequence[_Target]]
) -> Iterator[tuple[StoredTensor, _Target]]:
    """Tensors of layers that are here, and where they go: to every layer that knows the name. Of those that are stored
    twice, as tied ones may be, one."""
    partly: dict[Parameter, set[int]] = {}
    for tensor in stored:
        for target in targets.get(tensor.name, ()):
            if not target.layer.here:
                continue
            known = partly.setdefault(target.parameter, set())
            if not known.issuperset(target.shards):
                known.update(target.shards)
                yield tensor, target


def _to_read(wanted: Sequence[_Wanted], found: list[ref[mmap]]) -> Iterator[tuple[_Wanted, Iterable[Chunk]]]:
    """What is to be read of each tensor. A parameter that a file holds just as it is to be lies in the file from then
    on (:func:`map_file`), in pages that are added to ``found``."""
    parts: dict[Parameter, list[_Wanted]] = {}
    for each in wanted:
        parts.setdefault(each[1].parameter, []).append(each)
    mapped: dict[Parameter, Mapped | None] = {}
    for each in wanted:
        parameter = each[1].parameter
        if parameter not in mapped:
            whole = map_file((chunk for part in parts[parameter] for chunk in _chunks(*part)), parameter.storage)
            mapped[parameter] = None
            if whole:
                values, mapped[parameter] = whole
                parameter.adopt(values)
                found.append(ref(whole[1].pages))
        pages = mapped[parameter]
        yield each, (replace(chunk, mapped=pages) for chunk in _chunks(*each)) if pages else _chunks(*each)


def _chunks(tensor: StoredTensor, target: _Target) -> Iterator[Chunk]:
    """What is to be read of a tensor, in pieces."""
    rows, *columns = target.parameter.shape(target.shards)
    stride = tensor.num_bytes // max(1, rows)
    step = max(1, CHUNK_BYTES // max(1, stride))
    for place in target.parameter.places(target.shards):
        if tensor.decode is not None:
            yield from _decoded(tensor, tensor.decode, place, stride)
            continue
        cut = place.columns[0].start * stride // columns[0] if place.columns else 0
        for row in range(place.start, place.stop, step):
            start = tensor.start + row * stride + cut
            into = place.into[row - place.start : row - place.start + step]
            yield Chunk(tensor.file, start, stride, STORED_DTYPES[tensor.dtype], into)


def _decoded(tensor: StoredTensor, decode: DecodeRows, place: Place, stride: int) -> Iterator[Chunk]:
    """The same for a place in a tensor that is decoded: whole multiples of rows are read, and the wanted ones kept."""
    multiple = decode.multiple
    if not multiple:
        kept = (slice(place.start, place.stop), *place.columns)
        whole = (tensor.file, tensor.start, tensor.num_bytes, STORED_DTYPES[tensor.dtype], place.into)
        yield Chunk(*whole, decode, 1, kept)
        return
    step = max(1, CHUNK_BYTES // max(1, stride * multiple)) * multiple
    dtype = STORED_DTYPES[tensor.dtype]
    for first in range(place.start // multiple * multiple, place.stop, step):
        start, stop = max(first, place.start), min(first + step, place.stop)
        last = -(-stop // multiple) * multiple
        into = place.into[start - place.start : stop - place.start]
        kept = (slice(start - first, stop - first), *place.columns)
        yield Chunk(tensor.file, tensor.start + first * stride, stride, dtype, into, decode, last - first, kept)


def _check(
    checkpoint: Checkpoint,
    stored: Sequence[StoredTensor],
    targets: Mapping[str, Sequence[_Target]],
    ignored: Sequence[str],
    methods: Collection[Quantization],
) -> None:
    """Compares what the files hold with what the model wants, by their headers alone."""
    files = sorted({tensor.file.name for tensor in stored})
    where = f"{checkpoint.path} ({_listed(files, 3)})"
    present: dict[Parameter, set[int]] = {each.parameter: set() for found in targets.values() for each in found}
    unexpected = []
    for tensor in stored:
        for target in targets.get(tensor.name, ()):
            _check_one(tensor, target)
            present[target.parameter].update(target.shards)
        known = tensor.name in targets or any(re.fullmatch(pattern, tensor.name) for pattern in ignored)
        if not known and not any(method.is_empty(tensor) for method in methods):
            unexpected.append(tensor.name)
    missing = list(
        dict.fromkeys(name for p, shards in present.items() for i, name in enumerate(p.names) if i not in shards)
    )
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
