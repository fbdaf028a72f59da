"""Reads the header of a GGUF file: its metadata, and the names, types, shapes and places of its tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A header is untrusted: every count and length is
compared with the bytes that are left in the file before anything is read or allocated, and every tensor must lie inside
of the file. The ``gguf`` package's own reader checks neither, and takes a minute for the vocabulary of a large model.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, BinaryIO

import numpy as np

from llmk.api import CheckpointError, CheckpointFile
from llmk.api.errors import shown

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_MOST_NAME = 1 << 16
"""Bytes of a key or of a tensor's name; llama.cpp allows 64 bytes."""
_LONGEST_METADATA = 256 << 20
"""Bytes of all metadata; the vocabularies of published models have about 10 MiB."""
_MOST_ITEMS = 1 << 23
"""Items of all lists, each of which takes more memory than in the file; the largest vocabularies have 300,000 tokens,
each with a text, a score and a type, and as many merges."""
_LARGEST_ALIGNMENT = 1 << 20
_SMALLEST_ENTRY = 8 + 4 + 4 + 8
"""Bytes of a tensor's entry without name and dimensions; those of a metadata entry are as many as those of a key."""
_AGAIN = "download or copy the file again"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values, as ``struct`` and numpy write them."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A tensor as a file stores it: ``shape`` with the longest stride first, as in torch, and its data from byte
    ``start`` to ``stop - 1``, in blocks of the type ``kind`` (``"Q4_K"``)."""

    name: str
    file: CheckpointFile
    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of a file, by key, and its tensors in the order of their data."""

    metadata: Mapping[str, Any]
    tensors: Sequence[StoredBlocks]


def is_gguf(file: CheckpointFile) -> bool:
    """Whether a file starts as GGUF files do. Raises CheckpointError if it can't be opened."""
    with file.open() as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_header(file: CheckpointFile) -> Header:
    """The checked header of a file. Raises CheckpointError, which names the file and what is wrong."""
    with file.open() as stream:
        reader = _Reader(file, stream)
        if reader.take(4) != MAGIC:
            raise reader.damaged("it does not start with GGUF")
        version = reader.number("I")
        if version and version & 0xFFFF == 0:
            raise CheckpointError(
                f"{file} is a big-endian GGUF file", hint="convert it: gguf-convert-endian FILE little"
            )
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{file} has version {version} of GGUF, not {' or '.join(map(str, _VERSIONS))}",
                hint="convert the model again with a present llama.cpp",
            )
        num_tensors, num_entries = reader.number("Q"), reader.number("Q")
        reader.expect(num_tensors * _SMALLEST_ENTRY, f"{num_tensors:,} tensors")
        reader.expect(num_entries * _SMALLEST_ENTRY // 2, f"{num_entries:,} metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = reader.name("a metadata key")
            if key in metadata:
                raise reader.damaged(f"its metadata has {shown(key)} twice")
            metadata[key] = reader.value(reader.number("I"), key)
        entries = [_entry(reader) for _ in range(num_tensors)]
        return Header(metadata, _placed(reader, entries, _alignment(reader, metadata)))


class _Reader:
    """Reads values of a file in turn. ``left`` are the bytes up to its end."""

    def __init__(self, file: CheckpointFile, stream: BinaryIO) -> None:
        self.file = file
        self.size = os.fstat(stream.fileno()).st_size
        self.left = self.size
        self._read = stream.read
        self._items = 0
        self._numbers = {code: struct.Struct(f"<{code}") for code in _SCALARS.values()}

    def damaged(self, why: str) -> CheckpointError:
        """The error for a header that can't be right."""
        return CheckpointError(f"{self.file} has a damaged header: {why}", hint=_AGAIN)

    def expect(self, size: int, what: str) -> None:
        """Checks that ``size`` bytes are left for ``what``."""
        if size > self.left:
            raise CheckpointError(
                f"{self.file} is truncated or damaged: {what} can't be in the {self.left:,} bytes that are left",
                hint=_AGAIN,
            )

    def ended(self) -> CheckpointError:
        """The error for a file that became shorter while it was read."""
        return CheckpointError(f"{self.file} ended while it was read", hint=_AGAIN)

    def take(self, size: int, what: str = "its header") -> bytes:
        """The next ``size`` bytes."""
        self.expect(size, what)
        data = self._read(size)
        if len(data) < size:
            raise self.ended()
        self.left -= size
        return data

    def number(self, code: str) -> Any:
        """The next number or truth value; ``code`` is that of ``struct``."""
        number = self._numbers[code]
        return number.unpack(self.take(number.size))[0]

    def name(self, what: str) -> str:
        """A short text."""
        length = self.number("Q")
        if length > _MOST_NAME:
            raise self.damaged(f"{what} has {length:,} bytes, more than {_MOST_NAME:,}")
        return self.text(self.take(length, what), what)

    def text(self, data: bytes, what: str) -> str:
        """``data``, decoded."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error

    def value(self, kind: int, key: str) -> Any:
        """A metadata value of type ``kind``: a number, a truth value, a text, or a list of these."""
        if self.size - self.left > _LONGEST_METADATA:
            raise self.damaged(f"its metadata is longer than {_LONGEST_METADATA:,} bytes")
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            return self._string(key)
        if kind not in _SCALARS:
            raise self.damaged(f"{shown(key)} has the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def _string(self, key: str) -> str:
        return self.text(self.take(self.number("Q"), shown(key)), shown(key))

    def _strings(self, count: int, key: str) -> list[str]:
        """Texts of a vocabulary, of which there are so many that nothing is prepared for errors that they don't
        have."""
        read, unpack, size = self._read, self._numbers["Q"].unpack, self._numbers["Q"].size
        found, left = list[bytes](), self.left
        for _ in range(count):
            head = read(size) if left >= size else b""
            left -= len(head)
            length = unpack(head)[0] if len(head) == size else size
            if length > left or len(head) < size:
                self.left = left
                self.expect(length, shown(key))
                raise self.ended()
            found.append(read(length))
            left -= length
        if sum(map(len, found)) + count * size < self.left - left:
            raise self.ended()
        self.left = left
        try:
            return [data.decode() for data in found]
        except UnicodeDecodeError:
            return [self.text(data, shown(key)) for data in found]

    def _array(self, key: str) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        self._items += count
        if self._items > _MOST_ITEMS:
            raise self.damaged(f"its lists have {self._items:,} items up to {shown(key)}, more than {_MOST_ITEMS:,}")
        if kind == _STRING:
            self.expect(count * 8, f"{count:,} texts of {shown(key)}")
            return self._strings(count, key)
        if kind not in _SCALARS:
            raise self.damaged(f"{shown(key)} is a list of the unknown type {kind}")
        dtype = np.dtype(f"<{_SCALARS[kind]}")
        data = self.take(count * dtype.itemsize, f"{count:,} values of {shown(key)}")
        values: list[Any] = np.frombuffer(data, dtype).tolist()
        return values


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor's entry in the header; ``offset`` counts from where the data starts."""

    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int


def _entry(reader: _Reader) -> _Entry:
    name = reader.name("a tensor's name")
    count = reader.number("I")
    if count > _MOST_DIMENSIONS:
        raise reader.damaged(f"tensor {shown(name)} has {count} dimensions, more than {_MOST_DIMENSIONS}")
    shape = [reader.number("Q") for _ in range(count)]
    kind, offset = reader.number("I"), reader.number("Q")
    return _Entry(name, kind, tuple(reversed(shape)), offset)


def _alignment(reader: _Reader, metadata: Mapping[str, Any]) -> int:
    found = metadata.get("general.alignment", 32)
    if not isinstance(found, int) or not 1 <= found <= _LARGEST_ALIGNMENT or found & (found - 1):
        raise reader.damaged(f"general.alignment is {shown(found)}, not a power of two")
    return found


def _placed(reader: _Reader, entries: Sequence[_Entry], alignment: int) -> list[StoredBlocks]:
    """Where the tensors are in the file. Raises CheckpointError where one can't be there."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    names = {int(kind): kind.name for kind in GGMLQuantizationType}
    sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    data_start = -(-(reader.size - reader.left) // alignment) * alignment
    found: dict[str, StoredBlocks] = {}
    for entry in entries:
        name = shown(entry.name)
        if entry.kind not in sizes:
            known = ", ".join(names.values())
            raise CheckpointError(
                f"tensor {name} in {reader.file} has type {entry.kind}, which the installed gguf package does not know"
                f" (known: {known})",
                hint="pip install --upgrade gguf, or use a file of another type",
            )
        per_block, block_bytes = sizes[entry.kind]
        if entry.name in found:
            raise reader.damaged(f"it has tensor {name} twice")
        if not entry.shape or not all(0 < size < 1 << 40 for size in entry.shape):
            raise reader.damaged(f"tensor {name} has shape {list(entry.shape)}")
        if entry.shape[-1] % per_block:
            kind = names[entry.kind]
            raise reader.damaged(f"rows of {entry.shape[-1]} in tensor {name} don't consist of blocks of {kind}")
        if entry.offset % alignment:
            raise reader.damaged(f"tensor {name} starts at byte {entry.offset:,}, not a multiple of {alignment}")
        start = data_start + entry.offset
        stop = start + prod(entry.shape) // per_block * block_bytes
        found[entry.name] = StoredBlocks(entry.name, reader.file, names[entry.kind], entry.shape, start, stop)
    tensors = sorted(found.values(), key=lambda tensor: tensor.start)
    for one, other in pairwise(tensors):
        if other.start < one.stop:
            raise reader.damaged(f"tensors {shown(one.name)} and {shown(other.name)} overlap")
    if tensors and tensors[-1].stop > reader.size:
        cut = [tensor.name for tensor in tensors if tensor.stop > reader.size]
        raise CheckpointError(
            f"{reader.file} is truncated: it has {reader.size:,} of {tensors[-1].stop:,} bytes, so {len(cut)} of"
            f" {len(tensors)} tensors can't be read, among them {shown(cut[0])}",
            hint=_AGAIN,
        )
    return tensors
