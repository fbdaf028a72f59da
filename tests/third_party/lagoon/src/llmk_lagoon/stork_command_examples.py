"""Examples for the conformance kit: how ``llmk gguf-info`` is called, the files that it reads, and what it prints."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from llmk_testing.command_example import CommandExample

Pair = tuple[bytes, int, bytes]
Info = tuple[bytes, Sequence[int], int, int]


def text(value: bytes) -> bytes:
    """A text behind its length."""
    return struct.pack("<Q", len(value)) + value


def array(item_type: int, items: Sequence[bytes]) -> bytes:
    """A list behind the type of its items, and their number."""
    return struct.pack("<IQ", item_type, len(items)) + b"".join(items)


def u32(value: int) -> bytes:
    """A number of four bytes."""
    return struct.pack("<I", value)


ARCHITECTURE: Pair = (b"general.architecture", 8, text(b"llama"))
VALUES: tuple[Pair, ...] = (
    ARCHITECTURE,
    (b"general.name", 8, text("Små ord".encode())),
    (b"llama.block_count", 4, u32(12)),
    (b"llama.rope.freq_base", 6, struct.pack("<f", 1e6)),
    (b"tokenizer.ggml.add_bos_token", 7, b"\1"),
    (b"tokenizer.ggml.tokens", 9, array(8, [text(b"<s>"), text(b"a"), text(b"b"), text(b"\n")])),
    (b"tokenizer.ggml.scores", 9, array(12, [struct.pack("<d", -number / 2) for number in range(5)])),
    (b"nested", 9, array(9, [array(1, [b"\xff"]), array(7, [b"\0", b"\1"])])),
    (b"numbers.i64", 11, struct.pack("<q", -(2**40))),
    (b"numbers.u64", 10, struct.pack("<Q", 2**63)),
    (b"numbers.u8", 0, b"\x07"),
    (b"numbers.u16", 2, struct.pack("<H", 60000)),
    (b"numbers.i16", 3, struct.pack("<h", -2)),
    (b"numbers.i32", 5, struct.pack("<i", -3)),
    (b"empty", 9, array(4, [])),
    (b"long", 8, text(b"x" * 70)),
)
TENSORS: tuple[Info, ...] = (
    (b"output.weight", (256, 3), 14, 630),
    *((b"blk.%d.attn.weight" % number, (32, 2 + number), 8, 34 * (2 + number)) for number in range(12)),
    ("blk.0.mål".encode(), (7,), 0, 28),
    (b"rope", (2, 3, 1, 2), 1, 24),
)


def gguf(
    values: Sequence[Pair] = (ARCHITECTURE,), tensors: Sequence[Info] = TENSORS, version: int = 3, alignment: int = 32
) -> bytes:
    """A file. Each of ``tensors`` has a name, a shape, a type and the size of its data."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(values))]
    for key, value_type, value in values:
        parts += [text(key), u32(value_type), value]
    data = b""
    for name, shape, tensor_type, size in tensors:
        parts.append(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        parts.append(struct.pack("<IQ", tensor_type, len(data)))
        data += bytes(size + -size % alignment)
    head = b"".join(parts)
    return head + (bytes(-len(head) % alignment) if tensors else b"") + data


def write(content: bytes, folder: Path) -> None:
    """Writes the file."""
    (folder / "model.gguf").write_bytes(content)


def writer(content: bytes) -> Callable[[Path], None]:
    """A function that writes it."""
    return partial(write, content)


def with_value(key: bytes, value_type: int, value: bytes) -> Callable[[Path], None]:
    """A function that writes a file with another value."""
    return writer(gguf([ARCHITECTURE, (key, value_type, value)]))


def with_tensor(name: bytes, shape: Sequence[int], tensor_type: int, size: int) -> Callable[[Path], None]:
    """A function that writes a file with one tensor."""
    return writer(gguf(tensors=[(name, shape, tensor_type, size)]))


WHOLE = gguf()
ALIGNED = (ARCHITECTURE, (b"general.alignment", 4, u32(64)))
REFUSES = {
    "it is of another format": writer(b"GGML" + WHOLE[4:]),
    "it is of the first version": writer(gguf(version=1)),
    "it is big-endian": writer(b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
    "a value is of no known type": with_value(b"key", 13, b"\0" * 8),
    "an item is of no known type": with_value(b"key", 9, array(13, [b"\0" * 8])),
    "a switch is 2": with_value(b"key", 7, b"\2"),
    "a key is empty": with_value(b"", 7, b"\1"),
    "a key is there twice": with_value(b"general.architecture", 8, text(b"qwen")),
    "a key is no text": with_value(b"\xff", 7, b"\1"),
    "a text is none": with_value(b"key", 8, text(b"\xc3")),
    "a text is longer than the file": with_value(b"key", 8, struct.pack("<Q", 2**62)),
    "a list is longer than the file": with_value(b"key", 9, struct.pack("<IQ", 4, 2**62)),
    "a list of lists is longer than the file": with_value(b"key", 9, struct.pack("<IQ", 9, 2**62)),
    "lists are nested too deeply": with_value(b"key", 9, struct.pack("<IQ", 9, 1) * 40 + array(0, [b"\0"])),
    "the alignment is 0": with_value(b"general.alignment", 4, u32(0)),
    "the alignment is 24": writer(gguf([ARCHITECTURE, (b"general.alignment", 4, u32(24))], alignment=24)),
    "the alignment is a text": with_value(b"general.alignment", 8, text(b"32")),
    "the alignment is another than that of the data": writer(gguf(ALIGNED)),
    "a tensor is of no known type": with_tensor(b"a", (32,), 99, 32),
    "a row has a part of a block": with_tensor(b"a", (48, 2), 8, 102),
    "a tensor has no name": with_tensor(b"", (32,), 0, 128),
    "a name is too long": with_tensor(b"a" * 65, (32,), 0, 128),
    "a name is no text": with_tensor(b"\xe5", (32,), 0, 128),
    "a name is there twice": writer(gguf(tensors=[(b"a", (8,), 0, 32), (b"a", (8,), 0, 32)])),
    "a tensor has no dimensions": with_tensor(b"a", (), 0, 32),
    "a tensor has five dimensions": with_tensor(b"a", (2, 2, 2, 2, 2), 0, 128),
    "a shape is larger than the data": with_tensor(b"a", (64,), 0, 128),
    "a shape is smaller than the data": with_tensor(b"a", (16,), 0, 128),
    "a shape is larger than any file": with_tensor(b"a", (2**40, 2**40), 0, 128),
    "data overlap": writer(gguf(tensors=[(b"a", (32,), 0, 64), (b"b", (32,), 0, 128)])),
    "there are more tensors than the file has": writer(WHOLE[:8] + struct.pack("<Q", 2**60) + WHOLE[16:]),
    "there are more keys than the file has": writer(WHOLE[:16] + struct.pack("<Q", 2**60) + WHOLE[24:]),
}

SUMMARY = """GGUF version 3, architecture "llama", 1 keys
F16: 1 tensors, 12 elements, 24 bytes, 16.00 bits each
F32: 1 tensors, 7 elements, 28 bytes, 32.00 bits each
Q6_K: 1 tensors, 768 elements, 630 bytes, 6.56 bits each
Q8_0: 12 tensors, 2880 elements, 3060 bytes, 8.50 bits each
all: 15 tensors, 3667 elements, 3742 bytes, 8.16 bits each
"""
METADATA = r"""empty = [] (0)
general.architecture = "llama"
general.name = "Sm\u00e5 ord"
llama.block_count = 12
llama.rope.freq_base = 1e+06
long = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
nested = [[-1] (1), [false, true] (2)] (2)
numbers.i16 = -2
numbers.i32 = -3
numbers.i64 = -1099511627776
numbers.u8 = 7
numbers.u16 = 60000
numbers.u64 = 9223372036854775808
tokenizer.ggml.add_bos_token = true
tokenizer.ggml.scores = [0, -0.5, -1, ...] (5)
tokenizer.ggml.tokens = ["<s>", "a", "b", ...] (4)
"""
NAMES = r"""blk.0.attn.weight: Q8_0, 32 x 2, 68 bytes
"blk.0.m\u00e5l": F32, 7, 28 bytes
blk.1.attn.weight: Q8_0, 32 x 3, 102 bytes
blk.2.attn.weight: Q8_0, 32 x 4, 136 bytes
blk.3.attn.weight: Q8_0, 32 x 5, 170 bytes
blk.4.attn.weight: Q8_0, 32 x 6, 204 bytes
blk.5.attn.weight: Q8_0, 32 x 7, 238 bytes
blk.6.attn.weight: Q8_0, 32 x 8, 272 bytes
blk.7.attn.weight: Q8_0, 32 x 9, 306 bytes
blk.8.attn.weight: Q8_0, 32 x 10, 340 bytes
blk.9.attn.weight: Q8_0, 32 x 11, 374 bytes
blk.10.attn.weight: Q8_0, 32 x 12, 408 bytes
blk.11.attn.weight: Q8_0, 32 x 13, 442 bytes
output.weight: Q6_K, 256 x 3, 630 bytes
rope: F16, 2 x 3 x 1 x 2, 24 bytes
"""
SIZES = """output.weight: Q6_K, 256 x 3, 630 bytes
blk.11.attn.weight: Q8_0, 32 x 13, 442 bytes
blk.10.attn.weight: Q8_0, 32 x 12, 408 bytes
"""
LARGE = gguf(
    [ARCHITECTURE, (b"tokens", 9, array(8, [text(b"token %d" % number) for number in range(8_000)]))],
    [(b"a", (10, 100), 0, 4_000), (b"b", (3, 0), 30, 0)],
)
INFO = (
    CommandExample(arguments=["model.gguf"], write=writer(WHOLE), prints=SUMMARY, whole=True, refuses=REFUSES),
    CommandExample(arguments=["model.gguf", "--metadata"], write=writer(gguf(VALUES)), prints=METADATA),
    CommandExample(arguments=["model.gguf", "--tensors"], write=writer(gguf(version=2)), prints=NAMES),
    CommandExample(
        arguments=["model.gguf", "--tensors", "--by", "size", "--top", "3"], write=writer(WHOLE), prints=SIZES
    ),
    CommandExample(
        arguments=["model.gguf", "--tensors", "--metadata", "--match", "*r[ao]p*"],
        write=writer(gguf(VALUES)),
        prints="llama.rope.freq_base = 1e+06\nrope: F16, 2 x 3 x 1 x 2, 24 bytes\n",
    ),
    CommandExample(arguments=["model.gguf", "--tensors", "--match", "none"], write=writer(WHOLE), code=1),
    CommandExample(
        arguments=["model.gguf", "--match", "blk.1?.*"],
        write=writer(gguf(ALIGNED, alignment=64)),
        prints='GGUF version 3, architecture "llama", 2 keys\n'
        "Q8_0: 2 tensors, 800 elements, 850 bytes, 8.50 bits each\n"
        "all: 2 tensors, 800 elements, 850 bytes, 8.50 bits each\n",
    ),
    CommandExample(
        arguments=["model.gguf", "--metadata", "--tensors"],
        write=writer(LARGE),
        prints='general.architecture = "llama"\n'
        'tokens = ["token 0", "token 1", "token 2", ...] (8000)\n'
        "a: F32, 10 x 100, 4000 bytes\nb: BF16, 3 x 0, 0 bytes\n",
    ),
    CommandExample(
        arguments=["model.gguf"],
        write=writer(gguf([], [])),
        prints='GGUF version 3, architecture "unknown", 0 keys\n',
        code=1,
    ),
)
