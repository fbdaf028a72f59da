"""Headers of safetensors files: what is accepted is what the format allows, and what is refused says why."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, deserialize

from llmk.api import CheckpointError, CheckpointFile
from llmk.nn.tensor_file import DTYPE_BITS, read_headers

GOOD: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [24, 24]},
    "c": {"dtype": "U8", "shape": [], "data_offsets": [24, 25]},
}


def written(folder: Path, header: object, data: int = 25, *, length: int | None = None) -> CheckpointFile:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    number = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(number.to_bytes(8, "little") + text + bytes(data))
    return CheckpointFile(folder, "model.safetensors")


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def test_a_good_header(tmp_path: Path) -> None:
    a, b, c = read_headers([written(tmp_path, GOOD)])
    assert (a.name, a.dtype, a.shape, a.num_bytes, a.num_elements) == ("a", "F32", (2, 3), 24, 6)
    assert (b.start - a.start, b.num_bytes, c.stop - a.start) == (24, 0, 25)
    assert read_headers([written(tmp_path, json.dumps(GOOD).encode() + b"     ")]) != []


def entry(dtype: Any = "U8", shape: Any = (), offsets: Any = (24, 25)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        (changed(c=entry(offsets=[23, 24])), 24, "'c' overlaps tensor 'a'"),
        (changed(c=entry(offsets=[0, 1])), 24, "overlaps tensor"),
        (changed(c=entry(offsets=[26, 27])), 27, "'c' starts 2 bytes after tensor 'b'"),
        (changed(a=entry("F32", [2, 3], [0, 12])), 25, "'a' has data_offsets .*, 12 bytes"),
        (changed(a=entry("F32", [2, 3], [24, 0])), 25, "not the size of"),
        (changed(c=entry(offsets=[24.0, 25.0])), 25, "not its first byte"),
        (changed(c=entry(offsets=[24, True])), 25, "not its first byte"),
        (changed(c=entry(offsets=[24])), 25, "not its first byte"),
        (changed(c=entry(offsets=[-1, 0])), 25, "not its first byte"),
        (changed(c=entry(offsets=[10**30, 10**30 + 1])), 25, "not its first byte"),
        (changed(c=entry(offsets=None)), 25, "not its first byte"),
        (changed(c=entry(shape=[-1])), 25, "not a list of sizes"),
        (changed(c=entry(shape=[1.0])), 25, "not a list of sizes"),
        (changed(c=entry(shape=1)), 25, "not a list of sizes"),
        (changed(c=entry(shape=[1 << 62] * 60)), 25, "not the size of"),
        (changed(c=entry(["U8"])), 25, "which the format does not know"),
        (changed(c=entry("U9")), 25, "which the format does not know"),
        (changed(c=entry(None)), 25, "which the format does not know"),
        (changed(c=entry("F4", [1])), 25, "not the size of"),
        (changed(c=[1]), 25, "which the format does not know"),
        (changed(__metadata__={"a": 1}), 25, "__metadata__"),
        (changed(__metadata__=[]), 25, "__metadata__"),
        ([], 0, "it is a list"),
        (GOOD, 26, "1 bytes at its end belong to no tensor"),
        (GOOD, 24, "truncated: it has .* so c can't be read"),
        (b'{"a":' * 1000, 0, "nested deeper"),
        (b"[" * 1_000_000, 0, "nested deeper"),
        (json.dumps(GOOD).encode("utf-16"), 25, "damaged header"),
        (
            b'{"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]},'
            b' "a": {"dtype": "U8", "shape": [], "data_offsets": [1, 2]}}',
            2,
            "'a' occurs twice",
        ),
        (
            b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [], "data_offsets": [0, 1]}}',
            1,
            "'dtype' occurs twice",
        ),
    ],
)
def test_an_inconsistent_header_is_refused(tmp_path: Path, header: object, data: int, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_headers([written(tmp_path, header, data)])
    assert str(tmp_path / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize("length", [0, 1 << 20, (1 << 64) - 1, 100_000_001])
def test_a_header_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        read_headers([written(tmp_path, GOOD, length=length)])
    os.truncate(tmp_path / "model.safetensors", 1 << 40)  # which costs nothing, and must not be read
    with pytest.raises(CheckpointError, match=r"not a whole safetensors file|damaged header"):
        read_headers([CheckpointFile(tmp_path, "model.safetensors")])


def test_all_dtypes_of_the_format_are_known(tmp_path: Path) -> None:
    for dtype, bits in DTYPE_BITS.items():
        file = written(tmp_path, {"a": entry(dtype, [8], [0, bits])}, bits)
        assert [tensor.num_bytes for tensor in read_headers([file])] == [bits]
        assert deserialize(file.path.read_bytes())[0][1]["dtype"]


def test_what_is_accepted_is_what_the_librarys_own_reader_accepts(tmp_path: Path) -> None:
    """It takes the last of two tensors of one name, which are not made here; nothing else sets the two apart."""
    choose, verdicts = random.Random(7), {True: 0, False: 0}
    for _ in range(1500):
        header = {name: dict(entry) for name, entry in GOOD.items()}
        for _ in range(choose.choice((0, 1, 1, 2))):
            name = choose.choice("abc")
            key = choose.choice(("dtype", "shape", "data_offsets"))
            header[name][key] = {
                "dtype": lambda: choose.choice(("F32", "I32", "U8", "I8", "F4", "BOOL", "X")),
                "shape": lambda: [choose.choice((0, 1, 2, 3, 6)) for _ in range(choose.randrange(3))],
                "data_offsets": lambda: [choose.choice((0, 23, 24, 25, 26)) for _ in range(2)],
            }[key]()
        file = written(tmp_path, header, choose.choice((25, 25, 25, 24, 26)))
        try:
            deserialize(file.path.read_bytes())
            good = True
        except SafetensorError:
            good = False
        verdicts[good] += 1
        try:
            read_headers([file])
            assert good, header
        except CheckpointError:
            assert not good, header
    assert min(verdicts.values()) > 100
