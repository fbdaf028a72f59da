"""All-reduces through memory that ranks share. The ranks are processes, for which Triton's interpreter runs the kernels
on memory of the host; a compiled library in place of the driver shares it. With several GPUs,
``benchmarks/all_reduce.py`` checks them there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpus import FP8
from rank_processes import in_processes
from torch import Tensor

from llmk.reference.norms import rms_norm
from llmk_cuda import driver
from llmk_cuda.all_reduce import MOST, Layout, Most, PeerAllReduce, Tiles, offer

SOURCE = Path(__file__).with_name("peer_fixture.c")
CPU = torch.device("cpu")
TILES = Tiles(one_shot=64, two_shot=64, programs=3)
LIMITS = Most(one_shot=1024, two_shot=8192)
SIZES = (16, 1024, 4096, 272, 8192, 1040, 16, 5008)
"""Bytes of one message after the other: of one program and several, in whole tiles and not, in parts that are empty."""

pytestmark = pytest.mark.skipif(FP8, reason="the kernels are compiled here, and memory of the host is nothing to them")


@pytest.fixture
def on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a function of the rank on some ranks, which have joined; ``environ`` is for the driver."""
    monkeypatch.setattr(driver, "LIBRARY", str(tmp_path / "driver.so"))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", driver.LIBRARY, SOURCE], check=True)

    def start(ranks: int, run: Callable[[int], None], **environ: str) -> None:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

        def joined(rank: int) -> None:
            os.environ["RANK"] = str(rank)
            store = dist.FileStore(str(tmp_path / "store"), ranks)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
            run(rank)

        in_processes(joined, ranks)

    return start


def values(number: int, rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """A rank's message."""
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(size // dtype.itemsize, generator=generator).to(dtype)


def expected(number: int, ranks: int, size: int, dtype: torch.dtype) -> Tensor:
    """The sum in float32, in order, rounded once."""
    total = values(number, 0, size, dtype).float()
    for rank in range(1, ranks):
        total += values(number, rank, size, dtype).float()
    return total.to(dtype)


def same(found: Tensor, wanted: Tensor) -> bool:
    """Whether all bits are."""
    return torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        (2, torch.bfloat16),
        (2, torch.float32),
        pytest.param(3, torch.float16, marks=pytest.mark.slow),
        pytest.param(4, torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sums_of_messages_of_all_sizes(on_all: Callable[..., None], ranks: int, dtype: torch.dtype) -> None:
    def run(rank: int) -> None:
        own: Any = offer(dist.group.WORLD, CPU, LIMITS, TILES)
        for number, size in enumerate(SIZES):
            assert own.takes(size, dtype)
            total = own(values(number, rank, size, dtype))
            assert same(total, expected(number, ranks, size, dtype)), f"{size} bytes"

    on_all(ranks, run)


@pytest.mark.parametrize(
    ("ranks", "dtype", "size"),
    [
        (2, torch.bfloat16, 72),
        pytest.param(2, torch.float32, 64, marks=pytest.mark.slow),
        pytest.param(3, torch.float16, 24, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sums_with_the_norm_after_them(on_all: Callable[..., None], ranks: int, dtype: torch.dtype, size: int) -> None:
    """Between sums without: the total is the same, bit for bit."""

    def run(rank: int) -> None:
        own: Any = offer(dist.group.WORLD, CPU, LIMITS, TILES)
        weight = values(99, 99, size * dtype.itemsize, dtype)
        for number, rows in enumerate((1, 3, 2, 3)):
            num_bytes = rows * size * dtype.itemsize
            residual = values(number, 77, num_bytes, dtype).view(rows, size)
            own(values(number, rank, 1024, dtype))
            normed, total = own.add_rms_norm(
                values(number, rank, num_bytes, dtype).view(rows, size), residual, weight, 1e-5
            )
            assert same(total, residual + expected(number, ranks, num_bytes, dtype).view(rows, size))
            torch.testing.assert_close(normed, rms_norm(total, weight, 1e-5))

    on_all(ranks, run)


def test_norms_that_are_left_to_other_kernels() -> None:
    """Of more bytes than one shot is for, of rows of another size than the first, of other dtypes."""
    own = PeerAllReduce(0, [0, 0], LIMITS, CPU, TILES)
    own._row = 16

    def found(rows: int, size: int, dtype: torch.dtype = torch.float32) -> object:
        x = torch.ones(rows, size)
        return own.add_rms_norm(x, x, torch.ones(size, dtype=dtype), 1e-5)

    assert [found(17, 16), found(1, 32), found(1, 6), found(0, 16), found(1, 16, torch.float64)] == [None] * 5


def test_numbers_of_calls_start_again(on_all: Callable[..., None]) -> None:
    """After 2^32 calls: what memory held before the first one is not taken for what has arrived."""

    def run(rank: int) -> None:
        own: Any = offer(dist.group.WORLD, CPU, LIMITS, TILES)
        for counts in own._counts:
            counts.fill_(-3)
        for number in range(4):
            for size in (16 if number % 2 else 1024, 8192):
                total = own(values(number, rank, size, torch.float32))
                assert same(total, expected(number, 2, size, torch.float32)), f"{number}: {size} bytes"
        assert own._counts[0][0] == own._counts[1][0] == 3

    on_all(2, run)


def test_tensors_that_are_not_aligned(on_all: Callable[..., None]) -> None:
    """They are copied: columns, and what starts within 16 bytes."""

    def run(rank: int) -> None:
        own: Any = offer(dist.group.WORLD, CPU, LIMITS, TILES)
        x = torch.arange(65.0)
        for part in (x[1:], x[:64].view(8, 8).T, x[:1].expand(4)):
            assert torch.equal(own(part), 2 * part)
        assert torch.equal(x, torch.arange(65.0))

    on_all(2, run)


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"UNLINKED": "2"}, "peer memory: GPUs 0 and 1 can't read and write each other's memory; GPUs 1 and 0 can't"),
        ({"UNLINKED": "3"}, "have no link with atomics, such as NVLink"),
        ({"FULL": "1"}, "peer memory: cuMemAlloc_v2: CUDA's error 2"),
    ],
)
def test_all_ranks_know_why_there_is_none(on_all: Callable[..., None], environ: dict[str, str], why: str) -> None:
    def run(rank: int) -> None:
        found: Any = offer(dist.group.WORLD, CPU, LIMITS, TILES)
        assert why in "; ".join(map(str, found.reasons))

    on_all(2, run, **environ)


def test_what_is_taken() -> None:
    own = PeerAllReduce(0, [0, 0], LIMITS, CPU, TILES)
    sizes = (0, 8, 16, 1032, 8192, 8208)
    assert [size for size in sizes if own.takes(size, torch.bfloat16)] == [16, 8192]
    assert not own.takes(16, torch.float64)
    assert str(own) == "through peer memory for up to 8 KiB"


@pytest.mark.parametrize("ranks", range(2, 9))
def test_memory_of_a_rank(ranks: int) -> None:
    """Room for the largest messages, and less than a hundredth of a GPU."""
    most = next(most for size, most in MOST.items() if size >= ranks)
    layout = Layout(ranks, most, Tiles())
    assert layout.one_shot_words * 4 >= most.one_shot
    assert layout.two_shot_words * 4 >= most.two_shot
    assert layout.num_bytes < 1 << 28
