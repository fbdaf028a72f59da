"""Reads the headers of safetensors files: names, shapes and dtypes, but no tensor. Needs no torch.

A file is a little-endian 64-bit length, that many bytes of JSON, and the tensors' bytes
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from llmk.api import Checkpoint, CheckpointError

_LONGEST_HEADER = 100_000_000
_AGAIN = "download or copy the file again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file. ``dtype`` is safetensors' name (``"BF16"``); it lies at bytes ``start`` to ``stop - 1``."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start

    @property
    def num_elements(self) -> int:
        """The product of the shape."""
        return prod(self.shape)


def weight_files(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """The files that hold the checkpoint's tensors. Raises CheckpointError where there is none, or one is missing."""
    files = checkpoint.weight_files
    if not files:
        others = sorted(path.name for path in checkpoint.path.glob("*.bin"))
        raise CheckpointError(
            f"{checkpoint.path} has no safetensors file" + (f"; it has {_listed(others)}" if others else ""),
            hint="convert the weights to safetensors" if others else "download them, or use --model.load-format dummy",
        )
    if absent := [file.name for file in files if not file.exists()]:
        raise CheckpointError(
            f"{checkpoint.path} lacks {len(absent)} of the {len(files)} files that its index names: {_listed(absent)}",
            hint="download the missing files",
        )
    return files


def read_headers(files: Sequence[Path]) -> list[StoredTensor]:
    """All tensors of ``files``, file by file, in the order in which they lie there.

    Raises:
        CheckpointError: where a file is truncated or damaged, or two files hold a tensor of the same name.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in sorted(_read_header(file), key=lambda t: t.start):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"tensor {tensor.name!r} stands in {tensors[tensor.name].file.name} and in {file.name}",
                    hint=f"keep one of the two files in {file.parent}, or add an index that says which one counts",
                )
            tensors[tensor.name] = tensor
    return list(tensors.values())


def _read_header(file: Path) -> list[StoredTensor]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        text = stream.read(length) if 0 < length <= min(_LONGEST_HEADER, size - 8) else b""
    if not text:
        raise CheckpointError(
            f"{file} is not a whole safetensors file: it has {size:,} bytes, its header asks for {length + 8:,}",
            hint=_AGAIN,
        )
    begin = 8 + length
    try:
        tensors = [
            StoredTensor(
                name, file, entry["dtype"], tuple(entry["shape"]), *(begin + at for at in entry["data_offsets"])
            )
            for name, entry in json.loads(text).items()
            if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} has a damaged header: {error}", hint=_AGAIN) from error
    expected = max((tensor.stop for tensor in tensors), default=begin)
    if size < expected:
        cut = [tensor.name for tensor in tensors if tensor.stop > size]
        raise CheckpointError(
            f"{file} is truncated: it has {size:,} of {expected:,} bytes, so {_listed(cut)} can't be read", hint=_AGAIN
        )
    return tensors


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
