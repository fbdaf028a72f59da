"""Reads a Hugging Face folder that was packed with ``tar`` and not compressed, as it is: nothing is unpacked.

Members are found by their headers, and tensors by those of the safetensors files among them. The files may lie at the
top of the archive or in any one folder. Read are the dialects ustar, GNU (long names, numbers in base 256) and pax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, TypeGuard

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, StoredTensor, parse_json

from .crane_options import parsed
from .crane_tar_header import BLOCK, damaged, header, pax_records, text_of

MOST_MEMBERS = 100_000
LONGEST_EXTENSION = 1 << 20
LONGEST_JSON = 64 << 20
LONGEST_TEMPLATE = 4 << 20
LONGEST_TOKENIZER = 256 << 20
LONGEST_HEADER = 100 << 20
MOST_DIMENSIONS = 16
INDEX = "model.safetensors.index.json"
WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
"""Bytes of an element, by safetensors' name of the dtype."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive: bytes ``start`` to ``start + size - 1``. ``is_file``: it is stored as it is, and not a
    link or a file with holes."""

    start: int
    size: int
    is_file: bool


def read(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
    """Follows ``llmk.api.ReadCheckpoint``."""
    parsed(options)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{files[0].folder} has several models: {names}", hint="name one of the files")
    (file,) = files
    archive = Archive.of(file)
    config, generation, tokenizer = (
        archive.json(name) for name in ("config.json", "generation_config.json", "tokenizer_config.json")
    )
    template = archive.text("chat_template.jinja", LONGEST_TEMPLATE)
    if template is None and isinstance(tokenizer.get("chat_template"), str):
        template = tokenizer["chat_template"]
    archive.tokenizer()
    return Checkpoint(
        path=file.path,
        config=config,
        generation_config=generation,
        tokenizer_config=tokenizer,
        chat_template=template,
        weight_bytes=sum(tensor.num_bytes for tensor in archive.tensors()),
        reader=Reader(file),
        name=file.path.stem,
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """Follows ``llmk.api.CheckpointReader``. It is pickled for other processes, which read the headers again."""

    file: CheckpointFile

    def tensors(self) -> Sequence[StoredTensor]:
        """All tensors, under their names in the safetensors files."""
        return Archive.of(self.file).tensors()

    def tokenizer(self) -> str:
        """The text of ``tokenizer.json``."""
        return Archive.of(self.file).tokenizer()


@dataclass(frozen=True, slots=True)
class Archive:
    """The files of the model in an archive, by name."""

    file: CheckpointFile
    found: Mapping[str, Member]

    @classmethod
    def of(cls, file: CheckpointFile) -> Archive:
        """The files in the folder of ``config.json``, or of the only one that is highest. A later member replaces an
        earlier one of the same name, as when it is unpacked."""
        found = dict(_members(file))
        folders = [name.removesuffix("config.json") for name in found if re.search("(^|/)config.json$", name)]
        highest = [folder for folder in folders if folder.count("/") == min(each.count("/") for each in folders)]
        if len(highest) != 1:
            what = f"config.json in {', '.join(map(ascii, highest))}" if highest else "no config.json"
            raise CheckpointError(f"{file} has {what}", hint="pack the folder of one model")
        start = highest[0]
        return cls(file, {name[len(start) :]: each for name, each in found.items() if name.startswith(start)})

    def text(self, name: str, most: int) -> str | None:
        """A text file; ``None`` if there is none."""
        if name not in self.found:
            return None
        member = self._stored(name)
        if member.size > most:
            raise damaged(self.file, f"{name} has {member.size:,} bytes, more than the limit of {most:,}")
        with self.file.open() as stream:
            stream.seek(member.start)
            data = stream.read(member.size)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.file, f"{name} is not UTF-8") from error

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file; an empty one if there is no such file."""
        text = self.text(name, LONGEST_JSON)
        return {} if text is None else self._parsed(name, text)

    def tokenizer(self) -> str:
        """The text of ``tokenizer.json``."""
        text = self.text("tokenizer.json", LONGEST_TOKENIZER)
        if text is None:
            raise CheckpointError(
                f"{self.file} has no tokenizer.json", hint="save the tokenizer as a fast one, and pack again"
            )
        return text

    def tensors(self) -> list[StoredTensor]:
        """Those of all files that the index names; without an index, of all next to ``config.json``."""
        index = self.json(INDEX).get("weight_map")
        if index is None:
            names = sorted(name for name in self.found if re.fullmatch(r"[^/]+\.safetensors", name))
        elif isinstance(index, dict) and all(isinstance(name, str) for name in index.values()):
            names = sorted(set(index.values()))
        else:
            raise damaged(self.file, f"{INDEX} has no valid weight_map")
        tensors: dict[str, StoredTensor] = {}
        for name in names:
            for tensor in self._tensors_of(name):
                if tensor.name in tensors:
                    raise damaged(self.file, f"tensor {tensor.name!a} is there twice, the second time in {name}")
                tensors[tensor.name] = tensor
        if missing := set(index or ()) - tensors.keys():
            raise damaged(self.file, f"{INDEX} names {min(missing)!a}, which no file has")
        return list(tensors.values())

    def _stored(self, name: str) -> Member:
        if name not in self.found:
            raise damaged(self.file, f"it has no {name}")
        member = self.found[name]
        if not member.is_file:
            raise CheckpointError(
                f"{self.file} has {name} as a link or a file with holes",
                hint="pack again with tar --dereference, without --sparse",
            )
        return member

    def _parsed(self, name: str, text: str) -> dict[str, Any]:
        try:
            data = parse_json(text)
        except ValueError as error:
            raise damaged(self.file, f"{name} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise damaged(self.file, f"{name} is not an object")
        return data

    def _tensors_of(self, name: str) -> Iterator[StoredTensor]:
        """The tensors of a safetensors file, which fill it from the end of its header without a gap."""
        member = self._stored(name)
        with self.file.open() as stream:
            stream.seek(member.start)
            length = int.from_bytes(stream.read(min(8, member.size)), "little")
            if length > min(member.size - 8, LONGEST_HEADER):
                raise damaged(self.file, f"the header of {name} can't have {length:,} bytes")
            text = stream.read(length)
        try:
            entries = self._parsed(f"the header of {name}", text.decode())
        except UnicodeDecodeError as error:
            raise damaged(self.file, f"the header of {name} is not UTF-8") from error
        entries.pop("__metadata__", None)
        start = member.start + 8 + length
        found = sorted((self._placed(name, *item) for item in entries.items()), key=lambda each: each[2:])
        at = 0
        for tensor, (dtype, shape), first, last in found:
            if first != at or last - first != prod(shape) * WIDTHS[dtype]:
                raise damaged(
                    self.file, f"tensor {tensor!a} of {name} is not as long as its shape, or not behind the one before"
                )
            at = last
            yield StoredTensor(tensor, self.file, dtype, shape, start + first, start + last)
        if start + at != member.start + member.size:
            raise damaged(self.file, f"{name} has {member.size:,} bytes, and its tensors end before or behind them")

    def _placed(self, name: str, tensor: str, entry: Any) -> tuple[str, tuple[str, tuple[int, ...]], int, int]:
        """An entry of the header: dtype and shape, and where the data is."""
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape, place = (fields.get(field) for field in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in WIDTHS:
            raise damaged(self.file, f"tensor {tensor!a} of {name} has the unknown dtype {dtype!a}")
        if not (_are_sizes(shape, MOST_DIMENSIONS) and _are_sizes(place, 2)) or len(place) != 2:
            raise damaged(self.file, f"tensor {tensor!a} of {name} has no valid shape or offsets")
        return tensor, (dtype, tuple(shape)), place[0], place[1]


def _are_sizes(value: Any, most: int) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(each) is int and 0 <= each < 1 << 62 for each in value)
    )


def _members(file: CheckpointFile) -> Iterator[tuple[str, Member]]:
    """The files and links of an archive, up to its end, which is two blocks of zeros and nothing else behind them."""
    end, at = file.size, 0
    common: dict[str, str] = {}
    own: dict[str, str] = {}
    with file.open() as stream:
        for _ in range(MOST_MEMBERS):
            stream.seek(at)
            block = stream.read(BLOCK)
            if not any(block):
                _check_end(file, stream, len(block))
                return
            entry = header(file, block)
            start, size, kind = at + BLOCK, entry.size, entry.kind
            if kind not in b"xgLK" and "size" in {**common, **own}:
                size = _size(file, {**common, **own}["size"])
            at = start + size + -size % BLOCK
            if at > end:
                raise damaged(file, f"it ends within {entry.name!a}")
            if kind in b"xgLK":
                if size > LONGEST_EXTENSION:
                    raise damaged(file, f"the header before {entry.name!a} has {size:,} bytes")
                data = stream.read(size)
                if kind in b"xg":
                    (common if kind == b"g" else own).update(pax_records(file, data))
                elif kind == b"L":
                    own["path"] = text_of(data)
                continue
            name = {**common, **own}.get("path", entry.name)
            has_holes = any(key.startswith("GNU.sparse.") for key in own)
            own = {}
            if kind != b"5":
                yield name.removeprefix("./"), Member(start, size, kind in b"07\0" and not has_holes)
    raise damaged(file, f"it has more than {MOST_MEMBERS:,} members")


def _check_end(file: CheckpointFile, stream: BinaryIO, length: int) -> None:
    rest = stream.read(BLOCK)
    if length < BLOCK or len(rest) < BLOCK:
        raise damaged(file, "it has no end: the blocks of zeros are missing")
    while rest:
        if any(rest):
            raise damaged(file, "there is something behind its end")
        rest = stream.read(1 << 20)


def _size(file: CheckpointFile, text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise damaged(file, f"a member has the size {text!a}")
    return int(text)
