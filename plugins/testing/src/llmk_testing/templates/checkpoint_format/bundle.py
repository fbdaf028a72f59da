"""Reads a model that is one file: the format's name, the header's length (8 bytes, little endian), a JSON header, and
the data of the tensors.

The header has ``config``, ``generation_config`` and ``tokenizer_config``, which are objects as in the files of these
names; ``tokenizer``, the text of ``tokenizer.json``; and ``tensors``: dtype, shape and first byte by name, one behind
the other from the end of the header to the end of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, ConfigError, StoredTensor, parse_json

from .specs import MAGIC

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2}
"""Bytes of an element, by safetensors' name of the dtype."""
LONGEST_HEADER = 256 << 20
CONFIGS = ("config", "generation_config", "tokenizer_config")


def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
    """Follows ``llmk.api.ReadCheckpoint``. ``options`` are as the user wrote them: they are not validated yet."""
    if options:
        raise ConfigError(f"[plugin.acme] has no option {', '.join(options)}", hint="remove the section")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{files[0].folder} has several models: {names}", hint="name one of the files")
    (file,) = files
    header = _header(file)
    tensors = _tensors(file, header)
    return Checkpoint(
        path=file.path,
        **{name: header.get(name, {}) for name in CONFIGS},
        weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        reader=Reader(file),
        name=file.path.stem,
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """Follows ``llmk.api.CheckpointReader``. It is pickled for other processes, so it holds no content; and checks the
    file again there, which may have changed."""

    file: CheckpointFile

    def tensors(self) -> Sequence[StoredTensor]:
        """All tensors, whose names are those of the family's checkpoints."""
        return _tensors(self.file, _header(self.file))

    def tokenizer(self) -> str:
        """The text of ``tokenizer.json``."""
        text: str = _header(self.file)["tokenizer"]
        return text


def _header(file: CheckpointFile) -> dict[str, Any]:
    """The header, with its own length as ``end``. A file is data that someone else wrote: nothing of it is believed."""
    start = len(MAGIC) + 8
    with file.open() as stream:
        first = stream.read(start)
        length = int.from_bytes(first[len(MAGIC) :], "little")
        if len(first) < start or not first.startswith(MAGIC):
            raise _damaged(file, "it does not start as a bundle does")
        if length > min(file.size - start, LONGEST_HEADER):
            raise _damaged(file, f"its header can't have {length:,} bytes")
        text = stream.read(length)
    try:
        header = parse_json(text.decode())
    except ValueError as error:
        raise _damaged(file, "its header is not JSON") from error
    if not isinstance(header, dict) or not isinstance(header.get("tokenizer"), str):
        raise _damaged(file, "its header has no tokenizer")
    if not all(isinstance(header.get(name, {}), dict) for name in CONFIGS) or not header.get("config"):
        raise _damaged(file, "its header has no config, or one that is not an object")
    return {**header, "end": start + length}


def _tensors(file: CheckpointFile, header: Mapping[str, Any]) -> list[StoredTensor]:
    """The tensors, which fill the file without gaps, so that one that is cut or has more is noticed."""
    listed, at = header.get("tensors"), header["end"]
    if not isinstance(listed, dict):
        raise _damaged(file, "its header has no tensors")
    found = []
    for name, entry in listed.items():
        if not isinstance(entry, list) or len(entry) != 3:
            raise _damaged(file, f"tensor {name!a} is not described")
        dtype, shape, start = entry
        if not isinstance(dtype, str) or dtype not in WIDTHS:
            raise _damaged(file, f"tensor {name!a} has the unknown dtype {dtype!a}")
        if not isinstance(shape, list) or not all(type(each) is int and each >= 0 for each in shape) or start != at:
            raise _damaged(file, f"tensor {name!a} has no valid shape, or is not behind the one before")
        at += prod(shape) * WIDTHS[dtype]
        found.append(StoredTensor(name, file, dtype, tuple(shape), start, at))
    if at != file.size:
        raise _damaged(file, f"it has {file.size:,} bytes, and its tensors end at {at:,}")
    return found


def _damaged(file: CheckpointFile, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is a damaged bundle: {why}", hint="copy the file again")
