"""What the conformance kit tries the plugins of ``llmk_fjord.puffin_specs`` on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmk.api import StatLoggerContext
from llmk_testing.format_example import FormatContent, FormatExample
from llmk_testing.model_sources import SourceExample, toy_checkpoint
from llmk_testing.stat_examples import Runs, StatExamples

from .puffin_specs import MAGIC


def publish(store: Path, name: str, version: str, files: Mapping[str, bytes]) -> None:
    """Puts a version of a model into a store."""
    entries = {}
    for file, data in files.items():
        sha256 = hashlib.sha256(data).hexdigest()
        blob = store / "blobs" / sha256[:2] / sha256
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        entries[file] = {"sha256": sha256, "size": len(data)}
    manifest = store / "models" / name / f"{version}.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"files": entries}), encoding="utf-8")


@contextmanager
def store(folder: Path) -> Iterator[SourceExample]:
    """A store with three versions of one model, and another one."""
    toy = dict(toy_checkpoint())
    models = {
        "fjord:toy@1.9": {**toy, "generation_config.json": b'{"top_k": 9}'},
        "fjord:toy@1.10-rc": {**toy, "docs/README.md": b"A candidate."},
        "fjord:Other_one": {**toy, "generation_config.json": b'{"top_k": 3}'},
        "fjord:toy": toy,
    }
    for reference, files in models.items():
        name, _, version = reference.removeprefix("fjord:").partition("@")
        publish(folder, name, version or "2.0", files)
    models["fjord:toy@2.0"] = models.pop("fjord:toy")

    def damage() -> None:
        largest = max(toy.values(), key=len)
        sha256 = hashlib.sha256(largest).hexdigest()
        (folder / "blobs" / sha256[:2] / sha256).write_bytes(largest[:-1] + bytes([largest[-1] ^ 1]))

    def put(reference: str, files: Mapping[str, bytes]) -> None:
        name, _, version = reference.removeprefix("fjord:").partition("@")
        publish(folder, name, version or "2.0", files)

    def away() -> None:
        folder.rename(folder.with_name("unmounted"))

    options = {"store": str(folder)}
    yield SourceExample("fjord:toy", "fjord:tow", options, models, damage, put, away)


TOKENIZER = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "é": 1}, "merges": []}})
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "vocab_size": 6}
PLAIN: dict[str, tuple[str, Sequence[int], bytes]] = {
    "model.embed_tokens.weight": ("BF16", (6, 4), bytes(range(48))),
    "model.norm.weight": ("F32", (4,), struct.pack("<4f", 1, -2, 3.5, 4)),
    "model.scale": ("F32", (), struct.pack("<f", 0.5)),
    "model.empty": ("I8", (0, 4), b""),
}
ZLIB: dict[str, tuple[str, Sequence[int], bytes]] = {
    "lm_head.weight": ("BF16", (6, 4), bytes(range(100, 148))),
    "model.mask": ("BOOL", (3, 2), bytes([0, 1, 1, 0, 0, 1])),
}
WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
"""Bytes of an element; of other dtypes it is one."""


CONTENT = FormatContent(
    config=CONFIG,
    tensors=PLAIN | ZLIB,
    tokenizer=TOKENIZER,
    generation_config={"top_k": 7},
    tokenizer_config={"eos_token": "a"},
    chat_template="{{ messages[0].content }}",
)


def pack(
    change: Mapping[str, Mapping[str, Any]] | None = None,
    header: Mapping[str, Any] | None = None,
    rest: bytes = b"",
    content: FormatContent = CONTENT,
    compressed: Iterable[str] = ZLIB,
) -> bytes:
    """A pack, with changed entries of tensors, or of the header. Offsets do not depend on them."""
    begin = 4096
    data, tensors = content.tokenizer.encode(), {}
    for name, (dtype, shape, values) in content.tensors.items():
        width = WIDTHS.get(dtype, 1)
        planes = b"".join(values[byte::width] for byte in range(width))
        stored = zlib.compress(planes) if name in compressed else values
        start = begin + len(data)
        tensors[name] = {"dtype": dtype, "shape": shape, "start": start, "stop": start + len(stored)}
        tensors[name] |= {"encoding": "zlib" if name in compressed else "plain"} | dict((change or {}).get(name, {}))
        data += stored
    tokenizer = content.tokenizer.encode()
    described = {
        "size": begin + len(data) + len(rest),
        "config": content.config,
        "generation_config": content.generation_config,
        "tokenizer_config": content.tokenizer_config,
        "chat_template": content.chat_template,
        "tokenizer": {"start": begin, "stop": begin + len(tokenizer), "crc32": zlib.crc32(tokenizer)},
        "tensors": tensors,
        **(header or {}),
    }
    text = json.dumps(described, ensure_ascii=False).encode()
    text += b" " * (begin - 24 - len(text))
    return MAGIC + struct.pack("<QII", len(text), zlib.crc32(text), 0) + text + data + rest


def plain(content: FormatContent) -> bytes:
    """No tensor is compressed."""
    return pack(content=content, compressed=())


def packed(content: FormatContent) -> bytes | None:
    """All tensors are, which scalars can't be."""
    scalars = not all(shape for _, shape, _ in content.tensors.values())
    return None if scalars else pack(content=content, compressed=content.tensors)


def sealed(data: bytes) -> bytes:
    """With the right length of the file and the right checksum of the header."""
    length = int.from_bytes(data[8:16], "little")
    text = data[24 : 24 + length]
    if len(text) == length:
        size = re.search(rb'"size": *(\d+)', text)
        number = b"%d" % len(data)
        if size and len(number) <= len(size[1]):
            text = text[: size.start(1)] + number.ljust(len(size[1])) + text[size.end(1) :]
    return data[:16] + struct.pack("<I", zlib.crc32(text)) + data[20:24] + text + data[24 + length :]


_EMBEDDING, _NORM = "model.embed_tokens.weight", "model.norm.weight"
_WHOLE = pack()
PACK = FormatExample(
    file=_WHOLE,
    content=CONTENT,
    write=(plain, packed),
    seal=sealed,
    damaged={
        "the last byte is missing": _WHOLE[:-1],
        "there is a byte too many": _WHOLE + b"\0",
        "the header is changed": _WHOLE.replace(b'"hidden_size": 4', b'"hidden_size": 5'),
        "the header is longer than the file": MAGIC + struct.pack("<QII", 1 << 60, 0, 0) + _WHOLE[24:],
        "there is no header": MAGIC,
        "the reserved bytes are used": _WHOLE[:20] + b"\1" + _WHOLE[21:],
        "a tensor ends behind the file": pack({_NORM: {"shape": [1 << 30], "stop": 4096 + (1 << 32)}}),
        "a tensor is in the header": pack({_NORM: {"start": 24, "stop": 40}}),
        "a tensor ends before it starts": pack({_NORM: {"start": 4300, "stop": 4284}}),
        "a shape is not of as many bytes": pack({_NORM: {"shape": [5]}}),
        "a shape is negative": pack({_NORM: {"shape": [-2, -2]}}),
        "a shape has no whole numbers": pack({_NORM: {"shape": [4.0]}}),
        "a dtype is unknown": pack({_NORM: {"dtype": "F31"}}),
        "an encoding is unknown": pack({_NORM: {"encoding": "lzma"}}),
        "a tensor can't be compressed so far": pack({"lm_head.weight": {"shape": [1 << 40, 4]}}),
        "tensors overlap": pack({_NORM: {"start": 4096 + 100, "stop": 4096 + 116}}),
        "there are no tensors": pack(header={"tensors": {}}),
        "there is no tokenizer": pack(header={"tokenizer": None}),
        "the config is a list": pack(header={"config": []}),
        "the chat template is a number": pack(header={"chat_template": 1}),
    },
)


def influx_oracle(context: StatLoggerContext, runs: Runs) -> Mapping[str, bytes]:
    """The files of the ring: all blocks in order, cut where a file is full."""
    options = context.options
    limit, most = options.get("influx_bytes", 64 << 20), options.get("influx_files", 4)
    files: list[bytes] = []
    for run in runs:
        seen: dict[Any, float] = {}
        for snapshot in run:
            block = b""
            for stat in snapshot.stats:
                buckets = options.get("influx_buckets", True)
                if not math.isfinite(stat.value) or (
                    not buckets and stat.kind == "counter" and stat.name.endswith("_bucket")
                ):
                    continue
                tags = {
                    "model": options["influx_model"] or context.model_name,
                    **{("time_" if k == "time" else k): v for k, v in stat.labels.items()},
                }
                line = _plain(stat.name, " ,")
                for key in sorted(key for key in tags if key and tags[key]):
                    line += "," + _plain(key, " ,=") + "=" + _plain(tags[key], " ,=")
                line += f" value={float(stat.value)}"
                if stat.kind == "counter":
                    series = (stat.name, frozenset(stat.labels.items()))
                    before = seen.get(series, 0.0)
                    line += f",delta={float(stat.value) - (before if stat.value >= before else 0.0)}"
                    seen[series] = float(stat.value)
                block += f"{line} {round(snapshot.time * 1000) * 10**6}\n".encode()
            if block and files and len(files[-1]) + len(block) <= limit:
                files[-1] += block
            elif block:
                files = [*files, block][-most:]
    name = options.get("influx_file", "llmk.influx")
    kept = [name, *(f"{name}.{number}" for number in range(1, most))]
    return dict(zip(kept, reversed(files or [b""]), strict=False))


def _plain(text: str, special: str) -> str:
    """Escapes a character at a time."""
    result = ""
    for each in text:
        if ord(each) < 32 or each in "%\\\x7f\x85\u2028\u2029" or 0xD800 <= ord(each) < 0xE000:
            result += "".join(f"%{byte:02X}" for byte in each.encode("utf-8", "surrogatepass"))
        else:
            result += "\\" + each if each in special else each
    return result


INFLUX = StatExamples(
    sections=(
        {},
        {
            "influx_model": "toy",
            "influx_file": "stats",
            "influx_bytes": 256,
            "influx_files": 3,
            "influx_buckets": False,
        },
        {"influx_model": "toy", "influx_file": "deep/stats", "influx_bytes": 2000, "influx_files": 1},
    ),
    oracle=influx_oracle,
)

SLOTS: Mapping[str, Any] = {
    "slots": [f"device-{number}" for number in range(64)],
    "slots_folder": os.path.join(tempfile.gettempdir(), f"llmk-fjord-check-{os.getpid()}"),
    "slots_prefix": ["env", "FJORD_PLACE={index}", "FJORD_DEVICE={device}"],
}
