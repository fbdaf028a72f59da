"""Files that are damaged, lie about what they hold, or hold what is not served: each is refused with the reason, before
anything large is read or allocated."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from gguf_files import write_gguf

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, ConfigError, LlmkError, ModelNotFound
from llmk.config import Config, load
from llmk.kernel.registry import Registry
from llmk.planning.choices.checkpoints import choose_checkpoint
from llmk_gguf.header import read_header
from llmk_gguf.reader import read_gguf
from llmk_testing.checkpoints import write_checkpoint

HUGE = 1 << 60


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def entry(key: str | bytes, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def tensor(name: str | bytes, shape: tuple[int, ...] = (32, 2), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(*parts: bytes, tensors: int = 0, entries: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries) + b"".join(parts)


ALIGNED = bytes(4096)
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated or damaged: its header can't be in the 0 bytes that are left"),
    "of another kind": (b"PK\3\4" + ALIGNED, "does not start with GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF file"),
    "of version 1": (header(version=1), "has version 1 of GGUF, not 2 or 3"),
    "with countless tensors": (header(tensors=HUGE), f"{HUGE:,} tensors can't be in the 0 bytes"),
    "with countless entries": (header(entries=HUGE), f"{HUGE:,} metadata entries can't be in"),
    "with a huge key": (header(text("k", HUGE), ALIGNED, entries=1), "a metadata key has .* bytes, more than 65,536"),
    "with a huge text": (header(entry("k", 8, text("v", HUGE)), ALIGNED, entries=1), "'k' can't be in the"),
    "with a huge list": (
        header(entry("k", 9, struct.pack("<IQ", 0, HUGE)), ALIGNED, entries=1),
        "its lists have 1,152,921,504,606,846,976 items up to 'k', more than 8,388,608",
    ),
    "with a long list of texts": (
        header(entry("k", 9, struct.pack("<IQ", 8, 100_000)), ALIGNED, entries=1),
        "100,000 texts of 'k' can't be in the",
    ),
    "with a long list": (
        header(entry("k", 9, struct.pack("<IQ", 10, 100_000)), ALIGNED, entries=1),
        "100,000 values of 'k' can't be in the",
    ),
    "with lists of lists": (header(entry("k", 9, struct.pack("<IQ", 9, 1)), ALIGNED, entries=1), "unknown type 9"),
    "with an unknown value": (header(entry("k", 77, ALIGNED), entries=1), "'k' has the unknown type 77"),
    "with a key that is no UTF-8": (header(entry(b"\xff", 4, ALIGNED), entries=1), "a metadata key is not UTF-8"),
    "with a text that is no UTF-8": (header(entry("k", 8, text(b"a\xff")), entries=1), "'k' is not UTF-8"),
    "with a key twice": (header(entry("k", 0, b"1") * 2, ALIGNED, entries=2), "its metadata has 'k' twice"),
    "with odd alignment": (
        header(entry("general.alignment", 4, struct.pack("<I", 24)), ALIGNED, entries=1),
        "general.alignment is 24, not a power of two",
    ),
    "with a tensor of an unknown type": (
        header(tensor("t", kind=999), ALIGNED, tensors=1),
        r"tensor 't' .* has type 999, which the installed gguf package does not know \(known: F32, F16, Q4_0",
    ),
    "with a tensor beyond its end": (
        header(tensor("t", (1 << 30, 1 << 9)), ALIGNED, tensors=1),
        "is truncated: it has .* of 2,199,023,255,648 bytes, so 1 of 1 tensors can't be read, among them 't'",
    ),
    "with a tensor that starts beyond its end": (header(tensor("t", offset=HUGE), ALIGNED, tensors=1), "is truncated"),
    "with a size that overflows": (
        header(tensor("t", ((1 << 64) - 1, 2)), ALIGNED, tensors=1),
        r"tensor 't' has shape \[2, 18446744073709551615\]",
    ),
    "with many dimensions": (header(tensor("t", (1,) * 9), ALIGNED, tensors=1), "has 9 dimensions, more than 4"),
    "with no dimension": (header(tensor("t", ()), ALIGNED, tensors=1), r"tensor 't' has shape \[\]"),
    "with an empty tensor": (header(tensor("t", (0, 2)), ALIGNED, tensors=1), r"tensor 't' has shape \[2, 0\]"),
    "with parts of blocks": (
        header(tensor("t", (33, 2), 8), ALIGNED, tensors=1),
        "rows of 33 in tensor 't' .* of Q8_0",
    ),
    "with a tensor twice": (
        header(tensor("t"), tensor("t", offset=256), ALIGNED, tensors=2),
        "it has tensor 't' twice",
    ),
    "with tensors that overlap": (
        header(tensor("a"), tensor("b", offset=32), ALIGNED, tensors=2),
        "tensors 'a' and 'b' overlap",
    ),
    "with a tensor between places": (header(tensor("t", offset=7), ALIGNED, tensors=1), "byte 7, not a multiple of 32"),
    "with a name that is no UTF-8": (header(tensor(b"\xfe"), ALIGNED, tensors=1), "a tensor's name is not UTF-8"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_header_is_refused_before_memory_is_used(tmp_path: Path, kind: str) -> None:
    data, words = DAMAGED[kind]
    (tmp_path / "model.gguf").write_bytes(data)
    read_header_once(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=words) as caught:
            read_header(CheckpointFile(tmp_path, "model.gguf"))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert "model.gguf" in caught.value.message
    assert caught.value.hint


def read_header_once(folder: Path) -> None:
    """Imports what reading a header needs."""
    (folder / "good.gguf").write_bytes(header(tensor("t"), ALIGNED, tensors=1))
    read_header(CheckpointFile(folder, "good.gguf"))


@cache
def registry() -> Registry:
    return Registry.discover(Config().plugins)


def opened(path: Path) -> Checkpoint:
    return choose_checkpoint(registry(), load({"model.path": str(path)}, environ={}).config)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("plain"), "qwen3", num_hidden_layers=1, head_dim=16, intermediate_size=128
    )


@pytest.fixture(scope="module")
def whole(plain: Path) -> bytes:
    return write_gguf(plain, plain / "whole.gguf", "Q8_0").read_bytes()


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "model.gguf"
    for length in (*range(4, 2048, 97), *range(2048, len(whole) - 1, len(whole) // 10)):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="truncated") as caught:
            opened(file)
        assert caught.value.exit_code == 5


def test_a_file_with_flipped_bytes_is_read_or_refused_with_a_reason(tmp_path: Path, whole: bytes) -> None:
    file, end = tmp_path / "model.gguf", 3000
    for at in range(4, end, 61):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(LlmkError):
            checkpoint = opened(file)
            assert checkpoint.reader is not None
            checkpoint.reader.tensors()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general__architecture": "mamba9"}, "of the architecture 'mamba9', which is not served .* llama, qwen2"),
        ({"qwen3__block_count": None}, r"has no qwen3\.block_count"),
        ({"qwen3__block_count": "many"}, r"has qwen3\.block_count = 'many', which is not a whole number"),
        ({"qwen3__attention__head_count": [4, 2]}, r"head_count = \[4, 2\], which is not a whole number"),
        ({"qwen3__attention__head_count": 0}, r"has qwen3\.attention\.head_count = 0"),
        ({"qwen3__attention__value_length": 8}, "has keys of 16 and values of 8 elements"),
        ({"qwen3__rope__scaling__type": "su"}, r"has qwen3\.rope\.scaling\.type = 'su', which is not served"),
        ({"split__count": 3}, "says that its model has 3 parts, and there are 1"),
        ({"tokenizer__chat_template": "x" * (5 << 20)}, "has a chat template of more than 4,194,304 bytes"),
    ],
)
def test_options_that_are_not_served_are_named(
    plain: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    file = write_gguf(plain, tmp_path / "model.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=words):
        opened(file)


def test_a_type_that_can_not_be_dequantized_is_named(tmp_path: Path) -> None:
    data = header(
        entry("general.architecture", 8, text("llama")),
        *(entry(f"llama.{key}", 4, struct.pack("<I", 32)) for key in ("embedding_length", "block_count")),
        *(entry(f"llama.{key}", 4, struct.pack("<I", 1)) for key in ("attention.head_count", "feed_forward_length")),
        entry("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6)),
        entry("llama.context_length", 4, struct.pack("<I", 32)),
        tensor("token_embd.weight", kind=26),
        ALIGNED,
        tensors=1,
        entries=7,
    )
    (tmp_path / "model.gguf").write_bytes(data)
    checkpoint = opened(tmp_path / "model.gguf")
    assert checkpoint.reader is not None
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight' in .* has the type I32, which is not served"):
        checkpoint.reader.tensors()


def split(file: Path, count: int) -> Iterator[Path]:
    """Writes a file's tensors in several files, as ``llama-gguf-split`` does."""
    import gguf

    reader = gguf.GGUFReader(file)
    for part in range(count):
        path = file.parent / f"split-{part + 1:05d}-of-{count:05d}.gguf"
        writer = gguf.GGUFWriter(path, "qwen3")
        for field in reader.fields.values():
            if part == 0 and not field.name.startswith(("GGUF.", "general.arch")):
                writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", count)
        for one in reader.tensors[part::count]:
            writer.add_tensor(one.name, one.data, raw_dtype=one.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        yield path


def test_parts_of_a_model_are_one(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/model.gguf").write_bytes(whole)
    parts = list(split(tmp_path / "one/model.gguf", 3))
    (tmp_path / "one/model.gguf").unlink()
    expected = {one.name for one in read_header(CheckpointFile(tmp_path / "one", parts[0].name)).tensors}
    for named in (parts[0], parts[1], tmp_path / "one"):
        checkpoint = opened(named)
        assert checkpoint.path.name == "split-00001-of-00003.gguf"
        assert checkpoint.reader is not None
        tensors = checkpoint.reader.tensors()
        assert len(tensors) > 2 * len(expected)
        assert checkpoint.weight_bytes == sum(tensor.num_bytes for tensor in tensors)
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 3 parts of the model: split-00003-of-00003\.gguf"):
        opened(parts[0])


def test_a_folder_with_a_file_is_the_file_and_one_with_several_is_asked_about(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "a.gguf").write_bytes(whole)
    (tmp_path / "README.md").write_text("not a model")
    assert opened(tmp_path).path == (tmp_path / "a.gguf").resolve()
    (tmp_path / "b.gguf").write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"holds several models as GGUF: a\.gguf, b\.gguf") as caught:
        opened(tmp_path)
    assert "name one of the files" in caught.value.hint
    assert opened(tmp_path / "b.gguf").path.name == "b.gguf"


def test_the_content_says_what_a_file_is(tmp_path: Path, whole: bytes) -> None:
    """Some programs store models under a hash, and links lead to those."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/sha256-0a1b").write_bytes(whole)
    assert opened(tmp_path / "blobs/sha256-0a1b").architecture == "Qwen3ForCausalLM"
    (tmp_path / "model.gguf").symlink_to("blobs/sha256-0a1b")
    assert opened(tmp_path / "model.gguf").path.name == "model.gguf"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/model.gguf").symlink_to(tmp_path / "blobs/sha256-0a1b")
    assert opened(tmp_path / "elsewhere/model.gguf").path.name == "sha256-0a1b"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.write_bytes(b"not a model")])
def test_what_is_no_model_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "model.gguf")
    with pytest.raises(ModelNotFound):
        opened(tmp_path / "model.gguf")


@pytest.mark.parametrize("options", [{"weight": "packed"}, {"weights": "dense"}], ids=["unknown", "wrong"])
def test_options_that_there_are_not_are_refused(tmp_path: Path, whole: bytes, options: dict[str, str]) -> None:
    (tmp_path / "model.gguf").write_bytes(whole)
    with pytest.raises(ConfigError, match=next(iter(options))):
        read_gguf([CheckpointFile(tmp_path, "model.gguf")], options)
