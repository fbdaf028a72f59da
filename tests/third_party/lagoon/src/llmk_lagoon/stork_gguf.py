"""Reads what a GGUF file says of itself: its metadata, and the names, types and shapes of its tensors. No length that
the file states is believed before it fits into what is left of the file."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from llmk.api import CheckpointError, LlmkError

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The numbers of the types of values, and their formats."""
_BOOL, _STRING, _ARRAY = 7, 8, 9
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}
"""The numbers of the types of tensors: the name, the elements of a block, and its bytes."""
_MAX_DIMENSIONS = 4
_MAX_NAME = 64
_MAX_DEPTH = 4
_SHOWN = 3


@dataclass(frozen=True)
class Array:
    """A list of the metadata: how many items it has, and the first of them."""

    length: int
    first: tuple[Value, ...]


Value = bool | int | float | str | Array


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file. The first of ``shape`` is the innermost dimension."""

    name: str
    type: str
    shape: tuple[int, ...]
    elements: int
    bytes: int


@dataclass(frozen=True)
class Header:
    """All that a file says before its tensors' data."""

    version: int
    metadata: dict[str, Value]
    tensors: list[Tensor]


def read_header(path: Path) -> Header:
    """Reads the header of the file. Raises LlmkError, which names the file."""
    try:
        with path.open("rb") as file:
            return _Reader(path, file).header()
    except (OSError, ValueError) as error:
        raise LlmkError(f"{path} can't be read: {error}", hint="name a GGUF file") from error


class _Reader:
    """Reads from the start, and knows how many bytes are left."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0

    def header(self) -> Header:
        """The header. The file must end where its last tensor does."""
        if self._bytes(4, "magic number") != b"GGUF":
            raise self._damaged("it doesn't start with GGUF")
        version = self._number("I", "version")
        if version not in (2, 3):
            raise self._damaged(f"its version is {version}, not 2 or 3, or it is big-endian")
        num_tensors, num_values = self._number("Q", "number of tensors"), self._number("Q", "number of values")
        metadata: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._text("key")
            if not key or key in metadata:
                raise self._damaged(f"the key {key!r} is empty, or there twice")
            metadata[key] = self._value(self._number("I", f"type of {key}"), key)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, no power of two")
        return Header(version, metadata, self._tensors(num_tensors, alignment))

    def _tensors(self, number: int, alignment: int) -> list[Tensor]:
        """The tensors, whose data follow each other, each up to a multiple of ``alignment``."""
        tensors: dict[str, Tensor] = {}
        end = 0
        for _ in range(number):
            tensor, offset = self._tensor()
            if tensor.name in tensors:
                raise self._damaged(f"the tensor {tensor.name!r} is there twice")
            if offset != end:
                raise self._damaged(f"the data of {tensor.name!r} are at {offset}, expected at {end}")
            tensors[tensor.name] = tensor
            end += _padded(tensor.bytes, alignment)
        if tensors and (wanted := _padded(self._at, alignment) + end) != self._size:
            raise self._damaged(f"it has {self._size} bytes; with its tensors it should have {wanted}")
        if not tensors and not self._at <= self._size <= _padded(self._at, alignment):
            raise self._damaged("it goes on behind its end")
        return list(tensors.values())

    def _tensor(self) -> tuple[Tensor, int]:
        """A tensor, and where its data start behind those of the first."""
        name = self._text("name of a tensor")
        if not name or len(name.encode()) > _MAX_NAME:
            raise self._damaged(f"a tensor's name has no characters, or more than {_MAX_NAME}")
        num_dimensions = self._number("I", f"number of dimensions of {name}")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"{name!r} has {num_dimensions} dimensions, not 1 to {_MAX_DIMENSIONS}")
        shape = tuple(self._number("Q", f"shape of {name}") for _ in range(num_dimensions))
        number = self._number("I", f"type of {name}")
        if number not in _TYPES:
            raise self._damaged(f"{name!r} has the type {number}, which is not known")
        type_name, block, block_bytes = _TYPES[number]
        if shape[0] % block:
            raise self._damaged(f"{name!r} has rows of {shape[0]}, which blocks of {block} don't divide")
        elements = 1
        for size in shape:
            elements *= size
        tensor = Tensor(name, type_name, shape, elements, elements // block * block_bytes)
        return tensor, self._number("Q", f"offset of {name}")

    def _value(self, type_number: int, key: str, depth: int = 0) -> Value:
        if type_number == _STRING:
            return self._text(key)
        if type_number == _BOOL:
            byte = self._number("B", key)
            if byte > 1:
                raise self._damaged(f"{key!r} is {byte}, neither true nor false")
            return bool(byte)
        if type_number == _ARRAY and depth < _MAX_DEPTH:
            return self._array(key, depth)
        if type_number not in _FORMATS:
            raise self._damaged(f"{key!r} has a value of the type {type_number}, which is not known")
        return self._scalar(_FORMATS[type_number], key)

    def _array(self, key: str, depth: int) -> Array:
        item_type, length = self._number("I", f"type of {key}"), self._number("Q", f"length of {key}")
        first = [self._value(item_type, key, depth + 1) for _ in range(min(length, _SHOWN))]
        rest = length - len(first)
        if rest and item_type in _FORMATS and item_type != _BOOL:
            self._skip(rest * struct.calcsize("<" + _FORMATS[item_type]), key)
        else:
            for _ in range(rest):
                self._value(item_type, key, depth + 1)
        return Array(length, tuple(first))

    def _text(self, what: str) -> str:
        try:
            return self._bytes(self._number("Q", f"length of {what}"), what).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"{what} is no text in UTF-8") from error

    def _number(self, form: str, what: str) -> int:
        number = self._scalar(form, what)
        assert isinstance(number, int)
        return number

    def _scalar(self, form: str, what: str) -> int | float:
        number: int | float = struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form), what))[0]
        return number

    def _bytes(self, number: int, what: str) -> bytes:
        if number > self._size - self._at:
            raise self._damaged(f"it ends inside of {what}")
        self._at += number
        data = self._file.read(number)
        if len(data) != number:
            raise self._damaged(f"it ends inside of {what}")
        return data

    def _skip(self, number: int, what: str) -> None:
        if number > self._size - self._at:
            raise self._damaged(f"it ends inside of {what}")
        self._at += number
        self._file.seek(self._at)

    def _damaged(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is damaged, or no GGUF file: {problem}", hint="fetch it again")


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
