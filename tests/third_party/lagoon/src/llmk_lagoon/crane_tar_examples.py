"""Examples for the conformance kit: archives in each dialect, and how they may be damaged."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, serialize

from llmk_testing.format_example import FormatContent, FormatExample

from .crane_tar import WIDTHS

CONTENT = FormatContent(
    config={"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "vocab_size": 6},
    tokenizer=json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}),
    generation_config={"eos_token_id": 5},
    tokenizer_config={"eos_token": "</s>"},
    chat_template="{{ messages[0].content }}\n",
    tensors={
        "model.embed_tokens.weight": ("BF16", (6, 4), bytes(range(48))),
        "model.norm.weight": ("F32", (4,), bytes(range(16))),
        "model.scale": ("F16", (), b"\x00\x3c"),
        "model.empty": ("F16", (0, 4), b""),
    },
)
TENSORS = "model.safetensors"


def weights(tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> bytes:
    """A safetensors file, by its description."""
    entries, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def texts(content: FormatContent) -> dict[str, bytes] | None:
    """The text files; ``None`` for a template in two places."""
    if content.chat_template is None and isinstance(content.tokenizer_config.get("chat_template"), str):
        return None
    found = {"tokenizer.json": content.tokenizer.encode()}
    for name in ("config", "generation_config", "tokenizer_config"):
        found[f"{name}.json"] = json.dumps(dict(getattr(content, name))).encode()
    if content.chat_template is not None:
        found["chat_template.jinja"] = content.chat_template.encode()
    return found


def packed(files: Mapping[str, bytes], form: int, folder: str = "", headers: Mapping[str, str] | None = None) -> bytes:
    """An archive of files in a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form, pax_headers=headers) as archive:
        if folder:
            entry = tarfile.TarInfo(folder.rstrip("/"))
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(folder + name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def known(content: FormatContent) -> bool:
    """Whether safetensors has the dtypes."""
    return all(dtype in WIDTHS for dtype, _, _ in content.tensors.values())


def write_ustar(content: FormatContent) -> bytes | None:
    """Texts first, at the top of the archive, next to files that mean nothing."""
    files = texts(content)
    if files is None or not known(content):
        return None
    files = {"README.md": b"x" * 1024, **files, TENSORS: weights(content.tensors), "a/other.safetensors": b"none"}
    return packed(files, tarfile.USTAR_FORMAT)


def write_gnu(content: FormatContent) -> bytes | None:
    """Tensors first, in two files with an index, below ``./`` and long names."""
    files = texts(content)
    if files is None or not known(content):
        return None
    names = list(content.tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    index = {name: file for file, some in shards.items() for name in some}
    stored = {file: weights({name: content.tensors[name] for name in some}) for file, some in shards.items()}
    entry = {"model.safetensors.index.json": json.dumps({"weight_map": index}).encode()} if index else {}
    return packed({**stored, **entry, **files}, tarfile.GNU_FORMAT, "./" + "long/" * 101 + "names7/")


def write_pax(content: FormatContent) -> bytes | None:
    """Texts around the tensors, in a folder whose name needs a pax header, with a record for all members; a file was
    added a second time."""
    files = texts(content)
    if files is None or not known(content):
        return None
    config = files.pop("config.json")
    folder = "Modell größer " + "ä" * 60 + "/"
    first = {"config.json": b"{}", **files, TENSORS: weights(content.tensors)}
    both = [packed(each, tarfile.PAX_FORMAT, folder, {"comment": "llmk"}) for each in (first, {"config.json": config})]
    return both[0][: end_of(both[0])] + both[1]


def write_sizes(content: FormatContent) -> bytes | None:
    """As for files of more than 8 GiB: the size is in a pax header alone, and in base 256."""
    files = texts(content)
    if files is None or not known(content):
        return None
    archive = b""
    for name, data in {**files, TENSORS: weights(content.tensors)}.items():
        entry = tarfile.TarInfo(name)
        record = b" size=%d\n" % len(data)
        length = next(each for each in range(100) if each == len(record) + len(str(each)))
        pax = tarfile.TarInfo("././@PaxHeader")
        pax.type, pax.size = tarfile.XHDTYPE, length
        archive += pax.tobuf(tarfile.USTAR_FORMAT) + (b"%d" % length + record).ljust(512, b"\0")
        archive += entry.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)
    wide = bytearray(tarfile.TarInfo("other").tobuf(tarfile.USTAR_FORMAT))
    wide[124:136] = b"\x80" + (600).to_bytes(11, "big")
    return seal(archive + wide + bytes(1024) + bytes(1024))


def end_of(archive: bytes) -> int:
    """Where the blocks of zeros at the end start."""
    end = len(archive.rstrip(b"\0"))
    return end + -end % 512


def write_by_tools(option: str) -> Callable[[FormatContent], bytes | None]:
    """By GNU tar and the safetensors library."""

    def write(content: FormatContent) -> bytes | None:
        files = texts(content)
        if files is None or not known(content):
            return None
        if any(prod(shape) * WIDTHS[dtype] != len(data) for dtype, shape, data in content.tensors.values()):
            return None
        arrays = {name: np.frombuffer(data + b"\0", np.uint8) for name, (_, _, data) in content.tensors.items()}
        tensors = {
            name: TensorSpec(dtype=NAMES[dtype], shape=shape, data_ptr=arrays[name].ctypes.data, data_len=len(data))
            for name, (dtype, shape, data) in content.tensors.items()
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, data in {**files, TENSORS: bytes(serialize(tensors))}.items():
                Path(folder, name).write_bytes(data)
            command = ["tar", "--create", f"--format={option}", "--file=-", f"--directory={folder}", "."]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    return write


NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""The library's names of dtypes."""


def seal(archive: bytes) -> bytes:
    """The same with the right checksum in each header, as far as their sizes lead to the next one."""
    data, at, own = bytearray(archive), 0, b""
    while at + 512 <= len(data) and any(data[at : at + 512]):
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
        field, is_pax = bytes(data[at + 124 : at + 136]), data[at + 156 : at + 157] == b"x"
        try:
            size = int.from_bytes(field[1:], "big") if field[0] == 128 else int(field.partition(b"\0")[0], 8)
            size = size if is_pax or not own else int(own)
        except ValueError:
            break
        found = re.search(rb" size=([0-9]{1,18})\n", bytes(data[at + 512 : at + 512 + size])) if is_pax else None
        own = found[1] if found else b""
        at += 512 + size + -size % 512
    return bytes(data)


def changed(files: Mapping[str, bytes | None]) -> bytes:
    """An archive of the content with other files, or without some."""
    found = {**(texts(CONTENT) or {}), TENSORS: weights(CONTENT.tensors), **files}
    return packed({name: data for name, data in found.items() if data is not None}, tarfile.USTAR_FORMAT)


def headed(entries: object, data: bytes = bytes(8)) -> bytes:
    """A safetensors file with a header of one's own."""
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


WHOLE = write_ustar(CONTENT) or b""
ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TAR = FormatExample(
    file=WHOLE,
    content=CONTENT,
    write=(write_ustar, write_gnu, write_pax, write_sizes),
    tools={"GNU tar": write_by_tools("gnu"), "GNU tar in pax": write_by_tools("posix")},
    seal=seal,
    damaged={
        "a checksum is another": WHOLE[:8] + b"\1" + WHOLE[9:],
        "the end is missing": WHOLE[: end_of(WHOLE)],
        "one block of the end is missing": WHOLE[: end_of(WHOLE) + 512],
        "a member is cut": WHOLE[:1000],
        "something is behind the end": WHOLE + b"\1",
        "there is no config": changed({"config.json": None}),
        "there is no tokenizer": changed({"tokenizer.json": None}),
        "there are two models": changed({"config.json": None, "a/config.json": b"{}", "b/config.json": b"{}"}),
        "the config is a list": changed({"config.json": b"[]"}),
        "the config is not UTF-8": changed({"config.json": b'{"a": "\xff"}'}),
        "the index names a file that is missing": changed(
            {"model.safetensors.index.json": b'{"weight_map": {"a": "b"}}'}
        ),
        "the index names a tensor that is missing": changed(
            {"model.safetensors.index.json": json.dumps({"weight_map": {"a": TENSORS}}).encode()}
        ),
        "a tensor is there twice": changed({"z.safetensors": weights(CONTENT.tensors)}),
        "a header is longer than its file": changed({TENSORS: (1 << 62).to_bytes(8, "little")}),
        "a header is empty": changed({TENSORS: b""}),
        "a dtype is unknown": changed({TENSORS: headed({"a": {**ONE, "dtype": "Q4"}})}),
        "a shape is negative": changed({TENSORS: headed({"a": {**ONE, "shape": [-1, -2]}})}),
        "a shape is larger than the data": changed({TENSORS: headed({"a": {**ONE, "shape": [3]}})}),
        "a tensor ends before it starts": changed({TENSORS: headed({"a": {**ONE, "data_offsets": [8, 0]}})}),
        "a tensor ends behind its file": changed(
            {TENSORS: headed({"a": {**ONE, "shape": [4], "data_offsets": [0, 16]}})}
        ),
        "tensors overlap": changed({TENSORS: headed({"a": ONE, "b": ONE})}),
        "bytes are left": changed({TENSORS: headed({"a": ONE}, bytes(9))}),
    },
)
