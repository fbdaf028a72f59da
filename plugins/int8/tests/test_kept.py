"""Rounded weights in files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llmk_int8.kept import LEAST, VARIABLE, kept
from llmk_int8.rounding import Parts, int4_groups, int8_rows

WEIGHT = torch.randn(2048, 512).bfloat16()
assert WEIGHT.numel() >= LEAST


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


class Counting:
    """Rounds, and counts how often."""

    __name__ = "counting"
    calls = 0

    def __call__(self, weight: Tensor) -> Parts:
        self.calls += 1
        return int8_rows(weight)


def same(one: Parts, other: Parts) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rounded", [int8_rows, int4_groups])
def test_what_is_kept_is_what_was_rounded(rounded: Callable[[Tensor], Parts], place: Path) -> None:
    first = kept("a", WEIGHT, rounded, "files")
    assert same(first, rounded(WEIGHT))
    assert len(list(place.iterdir())) == 1
    assert same(kept("a", WEIGHT, rounded, "files"), first)


def test_a_matrix_is_rounded_once() -> None:
    counting = Counting()
    for _ in range(3):
        kept("a", WEIGHT, counting, "files")
    assert counting.calls == 1
    changed = WEIGHT.clone()
    changed[::32] += 1
    for layer, weight in (("b", WEIGHT), ("a", changed), ("a", WEIGHT.half()), ("a", WEIGHT.view(1024, 1024))):
        kept(layer, weight, counting, "files")
    kept("a", WEIGHT, counting, "other files")
    assert counting.calls == 6


def test_small_matrices_are_not_kept(place: Path) -> None:
    kept("a", WEIGHT[:10], int8_rows, "files")
    assert not place.exists()


def test_nothing_is_kept_where_the_variable_is_empty(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    assert same(kept("a", WEIGHT, int8_rows, "files"), int8_rows(WEIGHT))
    assert not place.exists()


def test_a_damaged_file_is_written_again(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept("a", WEIGHT, int8_rows, "files")
    (file,) = place.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    with caplog.at_level(logging.WARNING):
        assert same(kept("a", WEIGHT, int8_rows, "files"), int8_rows(WEIGHT))
    assert "can't be read" in caplog.text
    assert same(kept("a", WEIGHT, int8_rows, "files"), int8_rows(WEIGHT))


def test_a_folder_that_cannot_be_made_is_no_error(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.write_text("a file")
    with caplog.at_level(logging.WARNING):
        assert same(kept("a", WEIGHT, int8_rows, "files"), int8_rows(WEIGHT))
    assert "can't be kept" in caplog.text
