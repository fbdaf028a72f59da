"""Reads models that are one NumPy archive (``.npz``), as :func:`numpy.savez` and MLX's early converters write them.

An archive is a ZIP file. Its members ``NAME.npy`` are arrays, stored as they are or deflated, little- or big-endian, in
the order of C or of Fortran; bfloat16, which NumPy does not have, is ``V2`` there, two bytes of no type. The members
``config.json``, ``tokenizer.json`` and, if there are any, ``generation_config.json``, ``tokenizer_config.json`` and
``chat_template.jinja`` are the files that a Hugging Face folder has under these names. Other members are not read.
"""

from __future__ import annotations

import ast
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, StoredTensor, parse_json

from .plover_options import parse_options

if TYPE_CHECKING:
    from torch import Tensor

CONFIGS = ("config", "generation_config", "tokenizer_config")
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
ITEMS = {
    "f8": ("F64", "float64"),
    "f4": ("F32", "float32"),
    "f2": ("F16", "float16"),
    "V2": ("BF16", "bfloat16"),
    "i8": ("I64", "int64"),
    "i4": ("I32", "int32"),
    "i2": ("I16", "int16"),
    "i1": ("I8", "int8"),
    "u1": ("U8", "uint8"),
    "b1": ("BOOL", "bool"),
}
"""By NumPy's kind and width of an item: safetensors' name of the dtype, and torch's."""
MAGIC = b"\x93NUMPY"
LOCAL = struct.Struct("<4s5H3L2H")
"""What stands before a member: its name and extra fields follow, whose lengths are the last two."""
LONGEST_TEXT = 256 << 20
LONGEST_HEADER = 1 << 16
MOST_INFLATED = 1032
"""Bytes that one deflated byte can stand for."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an archive: its bytes in the file, and what the directory says of what they hold."""

    name: str
    start: int
    stop: int
    size: int
    crc: int
    deflated: bool


@dataclass(frozen=True, slots=True)
class Swapped:
    """Follows ``llmk.api.DecodeRows``: rows of big-endian items."""

    file: CheckpointFile
    dtype: str
    columns: tuple[int, ...]
    width: int
    multiple: int = 1

    def __call__(self, stored: Tensor) -> Tensor:
        """Turns the bytes of each item around."""
        return _items(stored, self.dtype, self.width, True).view(stored.shape[0], *self.columns)


@dataclass(frozen=True, slots=True)
class Whole:
    """Follows ``llmk.api.DecodeRows``: an array that is deflated, or whose first dimension runs fastest."""

    file: CheckpointFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    width: int
    swapped: bool
    fortran: bool
    member: Member
    skipped: int
    """Bytes before the first item, in what was inflated."""
    multiple: int = 0

    def __call__(self, stored: Tensor) -> Tensor:
        """All of the array."""
        import torch

        if self.member.deflated:
            content = _inflated(self.file, self.member, bytes(stored.flatten().numpy()))
            stored = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=self.skipped)
        items = _items(stored, self.dtype, self.width, self.swapped)
        if self.fortran:
            return items.view(self.shape[::-1]).permute(tuple(range(len(self.shape)))[::-1]).contiguous()
        return items.view(self.shape)


@dataclass(frozen=True, slots=True)
class Reader:
    """Follows ``llmk.api.CheckpointReader``. It reads the archive's directory again wherever it is used."""

    file: CheckpointFile

    def tensors(self) -> Sequence[StoredTensor]:
        """All arrays, by their names without ``.npy``."""
        with self.file.open() as stream:
            members = _members(self.file, stream)
            return [_tensor(self.file, stream, each) for name, each in members.items() if name.endswith(".npy")]

    def tokenizer(self) -> str:
        """The text of ``tokenizer.json``."""
        with self.file.open() as stream:
            return _text(self.file, stream, _members(self.file, stream), TOKENIZER)


def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
    """Follows ``llmk.api.ReadCheckpoint``."""
    parse_options(options)
    if len(files) > 1:
        names = ", ".join(each.name for each in files)
        raise CheckpointError(f"{files[0].folder} has several archives: {names}", hint="name one of the files")
    (file,) = files
    with file.open() as stream:
        members = _members(file, stream)
        if TOKENIZER not in members:
            raise _damaged(file, f"it has no {TOKENIZER}")
        configs = {name: _object(file, stream, members, f"{name}.json") for name in CONFIGS}
        template = _text(file, stream, members, TEMPLATE) if TEMPLATE in members else None
    if not configs["config"]:
        raise _damaged(file, "it has no config.json, or an empty one")
    reader = Reader(file)
    return Checkpoint(
        path=file.path,
        **configs,
        chat_template=template,
        weight_bytes=sum(tensor.num_bytes for tensor in reader.tensors()),
        reader=reader,
        name=file.path.stem,
    )


def _members(file: CheckpointFile, stream: BinaryIO) -> dict[str, Member]:
    """The archive's members by name. They lie in the file one behind the other, and none is there twice."""
    try:
        with zipfile.ZipFile(stream) as archive:
            listed, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError, OSError) as error:
        raise _damaged(file, f"its directory can't be read ({error})") from error
    found: dict[str, Member] = {}
    at = 0
    for info in sorted(listed, key=lambda each: each.header_offset):
        name = info.orig_filename
        if name in found:
            raise _damaged(file, f"it has two members {name!a}")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = "encrypted" if info.flag_bits & 1 else f"compressed by method {info.compress_type}"
            raise CheckpointError(f"{file} has {name!a}, which is {how}", hint="save it with numpy.savez_compressed")
        if not at <= info.header_offset < end:
            raise _damaged(file, f"{name!a} starts in another member, or outside of the file")
        start = _data_start(file, stream, info)
        stop = start + info.compress_size
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        if stop > end:
            raise _damaged(file, f"{name!a} ends outside of the file")
        if info.file_size > MOST_INFLATED * info.compress_size if deflated else info.file_size != info.compress_size:
            raise _damaged(file, f"{name!a} can't have {info.file_size:,} bytes")
        found[name] = Member(name, start, stop, info.file_size, info.CRC, deflated)
        at = stop
    return found


def _data_start(file: CheckpointFile, stream: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes start: its own header may have other extra fields than the directory."""
    stream.seek(info.header_offset)
    header = stream.read(LOCAL.size)
    if len(header) < LOCAL.size or not header.startswith(b"PK\x03\x04"):
        raise _damaged(file, f"{info.orig_filename!a} is not where the directory says")
    *_, name_length, extra_length = LOCAL.unpack(header)
    return int(info.header_offset + LOCAL.size + name_length + extra_length)


def _tensor(file: CheckpointFile, stream: BinaryIO, member: Member) -> StoredTensor:
    """An array's place in the file, and how it is decoded if it is not stored as it is used."""
    descr, fortran, shape, skipped = _header(file, stream, member)
    swapped, item = descr[:1] == ">", descr[1:]
    if descr[:1] not in ("<", ">", "|", "=") or item not in ITEMS:
        raise CheckpointError(f"{file} has {member.name!a} of the dtype {descr!a}", hint="save it as float32")
    (dtype, torch_name), width = ITEMS[item], int(item[1:])
    if skipped + prod(shape) * width != member.size:
        raise _damaged(file, f"{member.name!a} has {member.size:,} bytes, and the shape {shape}")
    name, start = member.name.removesuffix(".npy"), member.start if member.deflated else member.start + skipped
    if not prod(shape):
        return StoredTensor(name, file, dtype, shape, start, start)
    swapped = swapped and width > 1
    decode: Swapped | Whole | None = None
    if member.deflated or (fortran and len(shape) > 1) or (swapped and not shape):
        decode = Whole(file, name, torch_name, shape, width, swapped, fortran, member, skipped)
    elif swapped:
        decode = Swapped(file, torch_name, shape[1:], width)
    return StoredTensor(name, file, dtype, shape, start, member.stop, decode)


def _header(file: CheckpointFile, stream: BinaryIO, member: Member) -> tuple[str, bool, tuple[int, ...], int]:
    """An array's dtype, as NumPy describes it, whether it is in Fortran's order, its shape, and the header's length."""
    stream.seek(member.start)
    first = stream.read(min(LONGEST_HEADER, member.stop - member.start))
    if member.deflated:
        try:
            first = zlib.decompressobj(-zlib.MAX_WBITS).decompress(first, LONGEST_HEADER)
        except zlib.error as error:
            raise _damaged(file, f"{member.name!a} can't be inflated ({error})") from error
    wide = first[6:7] != b"\x01"
    fields = 12 if wide else 10
    if not first.startswith(MAGIC) or first[6:7] not in (b"\x01", b"\x02", b"\x03") or len(first) < fields:
        raise _damaged(file, f"{member.name!a} is no array of a known version of NumPy's format")
    end = fields + int.from_bytes(first[8:fields], "little")
    if end > len(first):
        raise _damaged(file, f"{member.name!a} has a header of {end:,} bytes")
    try:
        header = ast.literal_eval(first[fields:end].decode("latin-1").strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _damaged(file, f"the header of {member.name!a} can't be read") from error
    sizes_fit = isinstance(shape, tuple) and all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
    if not sizes_fit or not isinstance(descr, str) or not isinstance(fortran, bool):
        raise _damaged(file, f"the header of {member.name!a} describes no plain array")
    return descr, fortran, shape, end


def _object(file: CheckpointFile, stream: BinaryIO, members: Mapping[str, Member], name: str) -> dict[str, Any]:
    """The JSON object in a member; an empty one if there is no such member."""
    if name not in members:
        return {}
    try:
        found = parse_json(_text(file, stream, members, name))
    except ValueError as error:
        raise _damaged(file, f"{name} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise _damaged(file, f"{name} is not an object")
    return found


def _text(file: CheckpointFile, stream: BinaryIO, members: Mapping[str, Member], name: str) -> str:
    """A member's text, which is as its checksum says."""
    member = members.get(name)
    if member is None or member.size > LONGEST_TEXT:
        raise _damaged(file, f"it has no {name}, or a too long one")
    stream.seek(member.start)
    content = stream.read(member.stop - member.start)
    if member.deflated:
        content = _inflated(file, member, content)
    elif zlib.crc32(content) != member.crc:
        raise _damaged(file, f"{name} is not what was written")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(file, f"{name} is not UTF-8") from error


def _inflated(file: CheckpointFile, member: Member, content: bytes) -> bytes:
    """What the deflated bytes of a member stand for; never more than the directory says, nor something else."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = inflater.decompress(content, member.size + 1)
    except zlib.error as error:
        raise _damaged(file, f"{member.name!a} can't be inflated ({error})") from error
    if len(found) != member.size or not inflater.eof or inflater.unused_data or zlib.crc32(found) != member.crc:
        raise _damaged(file, f"{member.name!a} is not what was written")
    return found


def _items(stored: Tensor, dtype: str, width: int, swapped: bool) -> Tensor:
    """Bytes as items, in one dimension."""
    import torch

    if swapped:
        stored = stored.reshape(-1, width).flip(-1)
    return stored.contiguous().flatten().view(getattr(torch, dtype))


def _damaged(file: CheckpointFile, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is a damaged NumPy archive: {why}", hint="copy or convert the file again")
