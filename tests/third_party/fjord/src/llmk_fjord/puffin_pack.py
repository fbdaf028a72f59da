"""A format of checkpoints: a pack, one file with all of a model.

``FJPACK1\\n``, the header's length (8 bytes, little endian), its CRC-32 (4 bytes) and 4 zero bytes; the header, a JSON
object; then the tokenizer and the tensors. The header has ``size``, the length of the whole file; ``config``,
``generation_config``, ``tokenizer_config`` and ``chat_template`` as in a folder; ``tokenizer`` with ``start``, ``stop``
and ``crc32``; and ``tensors`` by name, with ``dtype``, ``shape``, ``start``, ``stop``, and ``encoding``: ``plain``, or
``zlib``: the tensor's bytes compressed, with the first bytes of all elements before all second ones and so on.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, ConfigError, StoredTensor

from .puffin_specs import MAGIC, Options

if TYPE_CHECKING:
    from torch import Tensor

BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
PREAMBLE = len(MAGIC) + 16
LONGEST_TOKENIZER = 256 << 20
MOST_RATIO = 1100
"""Zlib makes no more than 1032 bytes of one."""


@dataclass(frozen=True, slots=True)
class Inflate:
    """Decodes a tensor of encoding ``zlib``. Follows ``llmk.api.DecodeRows``."""

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def multiple(self) -> int:
        """All rows at once: the bytes of a row are spread over the whole."""
        return 0

    def __call__(self, stored: Tensor) -> Tensor:
        """``[1, bytes]`` to the tensor. No more than the tensor's size is made of them."""
        import torch

        width = BYTES[self.dtype]
        size = prod(self.shape) * width
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(stored.contiguous().view(-1).numpy().data, size + 1)
        except zlib.error as error:
            raise _damaged(self.file, f"tensor {self.name!a} can't be decompressed: {error}") from error
        if len(data) != size or not inflater.eof or inflater.unused_data:
            raise _damaged(self.file, f"tensor {self.name!a} has other than {size:,} bytes when decompressed")
        dtype = getattr(torch, TORCH[self.dtype])
        if not size:
            return torch.empty(self.shape, dtype=dtype)
        if size == width:  # torch takes the strides of one element for those of bytes
            return torch.frombuffer(bytearray(data), dtype=dtype).view(self.shape)
        planes = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(width, -1)
        return planes.t().contiguous().view(dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class PackReader:
    """Reads a pack's tensors and tokenizer. It holds no content, and checks the header again in each process."""

    file: CheckpointFile
    longest: int

    def tensors(self) -> Sequence[StoredTensor]:
        """All tensors, in the header's order."""
        return _tensors(self.file, _header(self.file, self.longest))

    def tokenizer(self) -> str:
        """The text of ``tokenizer.json``."""
        start, stop, crc = _tokenizer(self.file, _header(self.file, self.longest))
        with self.file.open() as stream:
            stream.seek(start)
            data = stream.read(stop - start)
        if len(data) != stop - start or zlib.crc32(data) != crc:
            raise _damaged(self.file, "its tokenizer was changed")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _damaged(self.file, f"its tokenizer is not UTF-8: {error.reason}") from error


def read_pack(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
    """Follows ``llmk.api.ReadCheckpoint``."""
    try:
        checked = Options.model_validate(dict(options))
    except ValidationError as error:
        raise ConfigError(
            f"[plugin.puffin] has {error}", hint=f"its options are {', '.join(Options.model_fields)}"
        ) from error
    if len(files) != 1:
        raise CheckpointError(
            f"there are {len(files)} packs, each a model: {', '.join(str(file) for file in files)}",
            hint="name one of the files instead of their folder",
        )
    (file,) = files
    longest = checked.pack_header_mib << 20
    header = _header(file, longest)
    tensors = _tensors(file, header)
    _tokenizer(file, header)
    configs = {name: header.get(name, {}) for name in ("config", "generation_config", "tokenizer_config")}
    for name, value in configs.items():
        if not isinstance(value, dict) or not (value or name != "config"):
            raise _damaged(file, f"its {name} is missing, or no JSON object")
    template = header.get("chat_template")
    if template is not None and not isinstance(template, str):
        raise _damaged(file, "its chat_template is no text")
    if template is not None:  # the server takes it from there
        configs["tokenizer_config"] = {**configs.get("tokenizer_config", {}), "chat_template": template}
    return Checkpoint(
        path=file.path,
        **configs,
        chat_template=template,
        weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        reader=PackReader(file, longest),
        name=file.path.stem,
    )


def _header(file: CheckpointFile, longest: int) -> dict[str, Any]:
    """The header, once its length, its checksum and the file's length are right."""
    size = file.size
    with file.open() as stream:
        first = stream.read(PREAMBLE)
        length, crc = int.from_bytes(first[8:16], "little"), int.from_bytes(first[16:20], "little")
        if len(first) < PREAMBLE or first[: len(MAGIC)] != MAGIC or any(first[20:]):
            raise _damaged(file, "it does not begin as a pack does")
        if length > size - PREAMBLE:
            raise _damaged(file, f"its header of {length:,} bytes is longer than the file")
        if length > longest:
            raise CheckpointError(
                f"{file} has a header of {length:,} bytes, more than {longest:,}",
                hint="raise [plugin.puffin] pack_header_mib if you trust the file",
            )
        data = stream.read(length)
    if len(data) != length or zlib.crc32(data) != crc:
        raise _damaged(file, "its header was changed")
    try:
        header = json.loads(data.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict) or type(header.get("size")) is not int:
        raise _damaged(file, "its header does not say how long the file is")
    if header["size"] != size:
        raise _damaged(file, f"it has {size:,} bytes instead of {header['size']:,}")
    return dict(header, begin=PREAMBLE + length)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


def _tensors(file: CheckpointFile, header: Mapping[str, Any]) -> list[StoredTensor]:
    """All tensors, each inside the file and none in another's bytes."""
    listed = header.get("tensors")
    if not isinstance(listed, dict) or not listed:
        raise _damaged(file, "it has no tensors")
    tensors = []
    for name, entry in listed.items():
        if not name or not name.isprintable() or not isinstance(entry, dict):
            raise _damaged(file, f"tensor {name!a} is not described")
        dtype, shape, encoding = entry.get("dtype"), entry.get("shape"), entry.get("encoding", "plain")
        if not isinstance(dtype, str) or dtype not in BYTES:
            raise _damaged(file, f"tensor {name!a} has the unknown dtype {dtype!a}")
        if not isinstance(shape, list) or not all(type(each) is int and 0 <= each < 1 << 48 for each in shape):
            raise _damaged(file, f"tensor {name!a} has no valid shape")
        start, stop = _span(file, header, entry, f"tensor {name!a}")
        size = prod(shape) * BYTES[dtype]
        decode = None
        if encoding == "zlib":
            if size > (stop - start) * MOST_RATIO or not shape:
                raise _damaged(file, f"tensor {name!a} can't be compressed to {stop - start:,} bytes")
            decode = Inflate(str(file), name, dtype, tuple(shape))
        elif encoding != "plain":
            raise _damaged(file, f"tensor {name!a} has the unknown encoding {encoding!a}")
        elif size != stop - start:
            raise _damaged(file, f"tensor {name!a} has {stop - start:,} bytes instead of {size:,}")
        tensors.append(StoredTensor(name, file, dtype, tuple(shape), start, stop, decode))
    spans = sorted((tensor.start, tensor.stop, tensor.name) for tensor in tensors if tensor.num_bytes)
    for (_, stop, one), (start, _, other) in pairwise(spans):
        if start < stop:
            raise _damaged(file, f"tensors {one!a} and {other!a} overlap")
    return tensors


def _tokenizer(file: CheckpointFile, header: Mapping[str, Any]) -> tuple[int, int, int]:
    entry = header.get("tokenizer")
    if not isinstance(entry, dict) or type(entry.get("crc32")) is not int:
        raise _damaged(file, "it has no tokenizer")
    start, stop = _span(file, header, entry, "its tokenizer")
    if stop - start > LONGEST_TOKENIZER:
        raise _damaged(file, f"its tokenizer has {stop - start:,} bytes")
    return start, stop, entry["crc32"]


def _span(file: CheckpointFile, header: Mapping[str, Any], entry: Mapping[str, Any], what: str) -> tuple[int, int]:
    start, stop = entry.get("start"), entry.get("stop")
    if type(start) is not int or type(stop) is not int or not header["begin"] <= start <= stop <= header["size"]:
        raise _damaged(file, f"{what} is not behind the header and inside the file")
    return start, stop


def _damaged(file: CheckpointFile | str, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is a damaged pack: {why}", hint="copy the file again, or make it again")
