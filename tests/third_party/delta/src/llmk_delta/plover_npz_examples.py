"""Examples of NumPy archives for the conformance kit: what writes them, and how they may be damaged."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from llmk_testing.format_example import FormatContent, FormatExample

from .plover_npz import CONFIGS, ITEMS, TEMPLATE, TOKENIZER

DESCRIPTIONS = {dtype: item for item, (dtype, _) in ITEMS.items()}
CONTENT = FormatContent(
    config={"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "vocab_size": 6},
    tokenizer=json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}),
    generation_config={"eos_token_id": 5},
    tokenizer_config={"eos_token": "</s>"},
    chat_template="{{ messages[0].content }}",
    tensors={
        "model.embed_tokens.weight": ("BF16", (6, 4), bytes(range(48))),
        "model.norm.weight": ("F32", (4,), bytes(range(16))),
        "model.scale": ("F16", (), b"\x00\x3c"),
        "model.empty": ("F16", (0, 4), b""),
    },
)


def array(
    dtype: str, shape: tuple[int, ...], values: bytes, order: str = "<", fortran: bool = False, version: int = 1
) -> bytes:
    """The content of ``NAME.npy``; ``values`` are written as they are. From version 2 on, headers may be longer."""
    described = {"descr": order + DESCRIPTIONS[dtype], "fortran_order": fortran, "shape": shape}
    header = repr(described).encode()
    width = 2 if version == 1 else 4
    header += b" " * (-(8 + width + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + len(header).to_bytes(width, "little") + header + values


def archive(members: Mapping[str, bytes | str], method: int = zipfile.ZIP_STORED) -> bytes:
    """A ZIP file."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return written.getvalue()


def behind(content: FormatContent) -> bytes | None:
    """An archive whose arrays are its last members."""
    found = members(content)
    return None if found is None else archive(dict(sorted(found.items(), key=lambda each: each[0].endswith(".npy"))))


def members(
    content: FormatContent, order: str = "<", fortran: bool = False, version: int = 1
) -> dict[str, bytes | str] | None:
    """All members of the content, arrays first; ``None`` for what there is no place for."""
    found: dict[str, bytes | str] = {}
    for name, (dtype, shape, values) in content.tensors.items():
        if dtype not in DESCRIPTIONS or "\0" in name or not 0 < len(name.encode()) < 60_000:
            return None
        sizes, width = tuple(shape), int(DESCRIPTIONS[dtype][1])
        if order == ">":
            values = b"".join(values[at : at + width][::-1] for at in range(0, len(values), width))
        if fortran and len(values) == prod(sizes) * width:
            values = transposed(values, sizes, width)
        found[f"{name}.npy"] = array(dtype, sizes, values, order, fortran, version)
    for name in CONFIGS:
        found[f"{name}.json"] = json.dumps(dict(getattr(content, name)), ensure_ascii=False)
    found[TOKENIZER] = content.tokenizer
    if content.chat_template is not None:
        found[TEMPLATE] = content.chat_template
    return found


def transposed(values: bytes, shape: tuple[int, ...], width: int) -> bytes:
    """The items with the first dimension running fastest."""
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    places = [0]
    for size, stride in zip(shape, strides, strict=True):
        places = [place + index * stride for index in range(size) for place in places]
    return b"".join(values[place * width : (place + 1) * width] for place in places)


def writer(
    method: int, order: str = "<", fortran: bool = False, version: int = 1
) -> Callable[[FormatContent], bytes | None]:
    """What writes any content in one form."""

    def write(content: FormatContent) -> bytes | None:
        found = members(content, order, fortran, version)
        return None if found is None else archive(found, method)

    return write


def by_numpy(save: Callable[..., None]) -> Callable[[FormatContent], bytes | None]:
    """What has NumPy write the arrays, and adds the texts."""

    def write(content: FormatContent) -> bytes | None:
        arrays = {}
        for name, (dtype, shape, values) in content.tensors.items():
            if dtype not in DESCRIPTIONS or not name or "\0" in name:
                return None
            arrays[name] = np.frombuffer(values, DESCRIPTIONS[dtype]).reshape(tuple(shape))
        written = io.BytesIO()
        save(written, **arrays)
        texts = {name: text for name, text in (members(content) or {}).items() if not name.endswith(".npy")}
        with zipfile.ZipFile(written, "a") as target:
            for name, text in texts.items():
                target.writestr(name, text)
        return written.getvalue()

    return write


def seal(data: bytes) -> bytes:
    """The archive with right checksums, as far as its members can be found."""
    fixed = bytearray(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as found:
            at = found.start_dir
            for info in found.infolist():
                names = struct.unpack_from("<2H", data, info.header_offset + 26)
                start = info.header_offset + 30 + sum(names)
                content = data[start : start + info.compress_size]
                if info.compress_type == zipfile.ZIP_DEFLATED:
                    content = zlib.decompressobj(-15).decompress(content, info.file_size + 1)
                crc = zlib.crc32(content).to_bytes(4, "little")
                fixed[at + 16 : at + 20] = fixed[info.header_offset + 14 : info.header_offset + 18] = crc
                at += 46 + sum(struct.unpack_from("<3H", data, at + 28))
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, ValueError, OverflowError, OSError):
        return data
    return bytes(fixed)


def changed(**replaced: bytes | str | None) -> bytes:
    """The example with other members, or without some: ``_`` stands for ``.``, ``__`` for ``_``."""
    found = members(CONTENT) or {}
    for name, content in replaced.items():
        name = name.replace("__", "\0").replace("_", ".").replace("\0", "_")
        found.pop(name, None)
        if content is not None:
            found[name] = content
    return archive(found)


WHOLE = archive(members(CONTENT) or {})
NPZ = FormatExample(
    file=WHOLE,
    content=CONTENT,
    write=(
        writer(zipfile.ZIP_STORED),
        writer(zipfile.ZIP_DEFLATED),
        writer(zipfile.ZIP_STORED, ">"),
        writer(zipfile.ZIP_STORED, "<", True),
        writer(zipfile.ZIP_DEFLATED, ">", True),
        writer(zipfile.ZIP_STORED, version=2),
        writer(zipfile.ZIP_DEFLATED, version=3),
        behind,
    ),
    tools={"numpy.savez": by_numpy(np.savez), "numpy.savez_compressed": by_numpy(np.savez_compressed)},
    seal=seal,
    damaged={
        "the end is missing": WHOLE[:-1],
        "only the start is there": WHOLE[:200],
        "there is no config": changed(config_json=None),
        "the config is empty": changed(config_json="{}"),
        "the config is a list": changed(config_json="[1]"),
        "the config is cut": changed(config_json='{"hidden_size": '),
        "there is no tokenizer": changed(tokenizer_json=None),
        "the tokenizer is not UTF-8": changed(tokenizer_json=b"\xff\xfe"),
        "an array has no magic": changed(a_npy=b"NUMPY"),
        "an array is of a newer version": changed(a_npy=array("F32", (1,), bytes(4)).replace(b"Y\x01", b"Y\x09")),
        "an array is shorter than its shape": changed(a_npy=array("F32", (2, 2), bytes(12))),
        "an array is longer than its shape": changed(a_npy=array("F32", (2, 2), bytes(17))),
        "an array is far larger than the file": changed(a_npy=array("F32", (1 << 40, 4), bytes(16))),
        "a size is negative": changed(a_npy=array("F32", (-1, -4), bytes(16))),
        "a dtype is unknown": changed(a_npy=array("F32", (2,), bytes(8)).replace(b"<f4", b"<U1")),
        "a header is no literal": changed(a_npy=array("F32", (2,), bytes(8)).replace(b"False", b"exit!")),
        "a member is compressed by bzip2": archive(members(CONTENT) or {}, zipfile.ZIP_BZIP2),
    },
)
