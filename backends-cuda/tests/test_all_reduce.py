"""All-reduces through memory that ranks share. The ranks are processes, and Triton's interpreter runs the kernels on
memory of the host; on machines with several GPUs, ``benchmarks/all_reduce.py`` checks them there."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Callable

import pytest
import torch
from gpus import FP8
from torch import Tensor

from llmk_cuda.all_reduce import Layout, Most, PeerAllReduce, Tiles

TILES = Tiles(one_shot=64, two_shot=64, programs=3)
MOST = Most(one_shot=1024, two_shot=8192)
SIZES = (16, 1024, 4096, 272, 8192, 1040, 16, 5008)
"""Bytes of one message after the other: of one program and several, in whole tiles and not, in parts that are empty."""
PATIENCE = 60.0

pytestmark = pytest.mark.skipif(FP8, reason="Triton compiles here, and what it compiles has no business with the host")


def on_all(ranks: int, run: Callable[[int], None]) -> None:
    """Runs ``run(rank)`` for all ranks, each a process that shares what memory there is for sharing."""

    def one(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            run(rank)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            raise

    processes = [multiprocessing.get_context("fork").Process(target=one, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    try:
        for rank, process in enumerate(processes):
            process.join(PATIENCE)
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
    finally:
        for process in processes:
            process.kill()


def memories(ranks: int, most: Most = MOST) -> list[Tensor]:
    """The memory of each rank."""
    return [torch.zeros(Layout(ranks, most, TILES).num_bytes, dtype=torch.uint8).share_memory_() for _ in range(ranks)]


def made(rank: int, areas: list[Tensor], most: Most = MOST) -> PeerAllReduce:
    """What a rank sums with."""
    return PeerAllReduce(rank, [area.data_ptr() for area in areas], most, torch.device("cpu"), TILES)


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


@pytest.mark.parametrize(
    ("ranks", "dtype"), [(2, torch.bfloat16), (2, torch.float32), (3, torch.float16), (4, torch.bfloat16)], ids=str
)
def test_sums_of_messages_of_all_sizes(ranks: int, dtype: torch.dtype) -> None:
    areas = memories(ranks)

    def run(rank: int) -> None:
        own = made(rank, areas)
        for number, size in enumerate(SIZES):
            x = values(number, rank, size, dtype)
            assert own.takes(size, dtype)
            assert torch.equal(own(x).view(torch.uint8), expected(number, ranks, size, dtype).view(torch.uint8)), size

    on_all(ranks, run)
