"""Reads the headers of safetensors files: names, shapes and dtypes, but no tensor. Needs no torch.

A file is a little-endian 64-bit length, that many bytes of JSON, and the tensors' bytes
(https://huggingface.co/docs/safetensors, "Format"). The whole header is checked, because all later reads depend on it:
tensors must be contiguous and must not overlap, each must have the size of its shape and dtype, and the last one must
end at the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeGuard

from llmk.api import Checkpoint, CheckpointError
from llmk.api.checkpoint import CheckpointFile, StoredTensor, files_in, parse_json
from llmk.api.errors import shown

_LONGEST_HEADER = 100_000_000
_MOST_DIMENSIONS = 64
_MOST_BYTES = 1 << 63
_COMPARE_CHUNK = 8 << 20
_POINTER = b"version https://git-lfs"
"""What files start with that git-lfs has not fetched."""
_DOWNLOAD_AGAIN = "download or copy the file again"

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of an element, by the format's names of dtypes."""


def stored_tensors(checkpoint: Checkpoint) -> Sequence[StoredTensor]:
    """All tensors of a checkpoint of any format. Raises CheckpointError as :func:`read_headers` does."""
    return checkpoint.reader.tensors() if checkpoint.reader else read_headers(weight_files(checkpoint))


def weight_files(checkpoint: Checkpoint) -> tuple[CheckpointFile, ...]:
    """The files that hold the checkpoint's tensors. Raises CheckpointError if there are none, or one is missing."""
    files = checkpoint.weight_files
    if not files:
        others = [file.name for kind in ("bin", "pth") for file in files_in(checkpoint.path, f"*.{kind}")]
        raise CheckpointError(
            f"{checkpoint.path} has no safetensors file" + (f"; it has {_listed(others)}" if others else ""),
            hint="convert the weights to safetensors" if others else "download them, or use --model.load-format dummy",
        )
    if absent := [file.name for file in files if not file.is_there]:
        raise CheckpointError(
            f"{checkpoint.path} lacks {len(absent)} of the {len(files)} files that its index names: {_listed(absent)}",
            hint="download the missing files",
        )
    return files


def read_headers(files: Sequence[CheckpointFile]) -> list[StoredTensor]:
    """All tensors of ``files``, file by file, in the order of their data.

    Raises:
        CheckpointError: a file is truncated or damaged, or two files hold a tensor of the same name.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _read_header(file):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"tensor {tensor.name!r} is stored in {tensors[tensor.name].file.name} and in {file.name}",
                    hint=f"keep one of the two files in {file.folder}, or add an index that names one of them",
                )
            tensors[tensor.name] = tensor
    return list(tensors.values())


def same_content(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors are equal, byte by byte. Raises CheckpointError."""
    if any(getattr(one, key) != getattr(other, key) for key in ("dtype", "shape", "num_bytes", "decode")):
        return False
    with one.file.open() as first, other.file.open() as second:
        first.seek(one.start)
        second.seek(other.start)
        for at in range(0, one.num_bytes, _COMPARE_CHUNK):
            size = min(_COMPARE_CHUNK, one.num_bytes - at)
            if first.read(size) != second.read(size):
                return False
    return True


def _read_header(file: CheckpointFile) -> list[StoredTensor]:
    with file.open() as stream:
        size = os.fstat(stream.fileno()).st_size
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little") if len(prefix) == 8 else 0
        text = stream.read(length) if 0 < length <= min(_LONGEST_HEADER, size - 8) else b""
    if prefix == _POINTER[: len(prefix)] and prefix:
        raise CheckpointError(
            f"{file} holds no weights, but a pointer to them: it was cloned by git without git-lfs",
            hint="fetch the weights with git lfs pull in its folder, or name the model: llmk serve org/name",
        )
    if len(text) < length or not text:
        raise CheckpointError(
            f"{file} is not a whole safetensors file: it has {size:,} bytes, its header needs {length + 8:,}",
            hint=_DOWNLOAD_AGAIN,
        )
    try:
        entries = parse_json(text.decode(), object_pairs_hook=_without_duplicates)
    except ValueError as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(entries, dict):
        raise _damaged(file, f"it is a {type(entries).__name__}, not an object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _damaged(file, "its __metadata__ is not an object of strings")
    tensors = sorted(
        (_read_entry(file, name, entry, 8 + length) for name, entry in entries.items()),
        key=lambda tensor: (tensor.start, tensor.stop),
    )
    _check_places(file, tensors, 8 + length, size)
    return tensors


def _read_entry(file: CheckpointFile, name: str, entry: Any, data_start: int) -> StoredTensor:
    """One tensor of a header; the tensors' data starts at byte ``data_start`` of the file."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _damaged(file, f"tensor {shown(name)} has dtype {shown(dtype)}, which the format does not know")
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _damaged(file, f"tensor {shown(name)} has shape {shown(shape)}, not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(
            file,
            f"tensor {shown(name)} has data_offsets {shown(offsets)}, not its first byte and the byte after its last",
        )
    (start, stop), bits = offsets, prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or stop - start != bits // 8:
        raise _damaged(
            file,
            f"tensor {shown(name)} has data_offsets {offsets}, {stop - start:,} bytes, not the size of {dtype} of shape"
            f" {shown(shape)}",
        )
    return StoredTensor(name, file, dtype, tuple(shape), data_start + start, data_start + stop)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _MOST_BYTES for value in values)


def _check_places(file: CheckpointFile, tensors: Sequence[StoredTensor], data_start: int, size: int) -> None:
    """Checks that ``tensors``, in their order, fill the file after the header."""
    at, before = data_start, "the header"
    for tensor in tensors:
        if tensor.start != at:
            what = "overlaps" if tensor.start < at else f"starts {tensor.start - at:,} bytes after"
            raise _damaged(file, f"tensor {shown(tensor.name)} {what} {before}")
        at, before = tensor.stop, f"tensor {shown(tensor.name)}"
    if size < at:
        cut = [tensor.name for tensor in tensors if tensor.stop > size]
        raise CheckpointError(
            f"{file} is truncated: it has {size:,} of {at:,} bytes, so {_listed(cut)} can't be read",
            hint=_DOWNLOAD_AGAIN,
        )
    if size > at:
        raise _damaged(file, f"{size - at:,} bytes at its end belong to no tensor")


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} occurs twice")
        found[name] = value
    return found


def _damaged(file: CheckpointFile, why: str) -> CheckpointError:
    return CheckpointError(f"{file} has a damaged header: {why}", hint=_DOWNLOAD_AGAIN)


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
