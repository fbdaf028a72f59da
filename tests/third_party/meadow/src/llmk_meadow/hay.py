"""A checkpoint format: ``HAY1``, the length of a header, the header as JSON, then tensors.

The header has ``config``, ``generation_config``, ``tokenizer_config``, ``chat_template``, ``tokenizer`` (the text of a
``tokenizer.json``) and ``tensors``: of each its ``name``, ``dtype``, ``shape`` and ``start``, which counts from the end
of the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from llmk.api import OK, Checkpoint, CheckpointError, CheckpointFile, StoredTensor, Verdict, no
from llmk.api.checkpoint import LONGEST_JSON, parse_json
from llmk_meadow.options import read as read_options

MAGIC = b"HAY1"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}


def claims(file: CheckpointFile) -> Verdict:
    """By its first bytes."""
    with file.open() as stream:
        found = stream.read(len(MAGIC))
    return OK if found == MAGIC else no("magic", wanted=MAGIC.decode(), found=ascii(found))


def damaged(file: CheckpointFile, why: str) -> CheckpointError:
    """The error for a file that can't be read."""
    return CheckpointError(f"{file} is damaged: {why}", hint="download or copy the file again")


def header_of(file: CheckpointFile) -> tuple[dict[str, Any], int]:
    """The header, and where tensors start."""
    size = file.size
    with file.open() as stream:
        start = stream.read(8)
        length = int.from_bytes(start[4:], "little")
        if len(start) < 8 or start[:4] != MAGIC or length > min(size - 8, LONGEST_JSON):
            raise damaged(file, f"its header does not fit in {size:,} bytes")
        data = stream.read(length)
    try:
        header = parse_json(data.decode())
    except ValueError as error:
        raise damaged(file, f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise damaged(file, "its header is not a JSON object")
    return header, 8 + length


def tensor_of(file: CheckpointFile, entry: dict[str, Any], base: int, size: int) -> StoredTensor:
    """One tensor, whose bytes are inside of the file."""
    if not isinstance(entry.get("name"), str):
        raise damaged(file, "a tensor has no name")
    name, dtype = entry["name"], entry.get("dtype")
    shape: Any = entry.get("shape")
    start: Any = entry.get("start")
    numbers = [*shape, start] if isinstance(shape, list) else [None]
    if dtype not in SIZES or not all(type(number) is int and number >= 0 for number in numbers):
        raise damaged(file, f"the tensor {name!a} has no dtype, shape or start that is known")
    stop = base + start + prod(shape) * SIZES[dtype]
    if stop > size:
        raise damaged(file, f"the tensor {name!a} ends at byte {stop:,} of {size:,}")
    return StoredTensor(name, file, dtype, tuple(shape), base + start, stop)


@dataclass(frozen=True, slots=True)
class HayReader:
    """Reads the header again in each process."""

    file: CheckpointFile

    def tensors(self) -> Sequence[StoredTensor]:
        """All tensors, each name once."""
        header, base = header_of(self.file)
        entries, size = header.get("tensors"), self.file.size
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise damaged(self.file, "it has no list of tensors")
        found = [tensor_of(self.file, entry, base, size) for entry in entries]
        if len({tensor.name for tensor in found}) < len(found):
            raise damaged(self.file, "two tensors have one name")
        return found

    def tokenizer(self) -> str:
        """The text of its ``tokenizer.json``."""
        text = header_of(self.file)[0].get("tokenizer")
        if not isinstance(text, str):
            raise damaged(self.file, "it has no tokenizer")
        return text


def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
    """One file is one checkpoint."""
    read_options(options)
    if len(files) != 1:
        raise CheckpointError(f"{files[0].folder} has {len(files)} checkpoints", hint="name one of the files")
    (file,) = files
    header, _ = header_of(file)
    configs = {key: header.get(key, {}) for key in ("config", "generation_config", "tokenizer_config")}
    template = header.get("chat_template")
    if not all(isinstance(each, dict) for each in configs.values()) or not isinstance(template, str | None):
        raise damaged(file, "a part of its header is not what it must be")
    reader = HayReader(file)
    reader.tensors()
    return Checkpoint(path=file.path, **configs, chat_template=template, weight_bytes=file.size, reader=reader)
