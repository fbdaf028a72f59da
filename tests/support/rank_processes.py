"""Ranks as forked processes of a test."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Callable

import torch

PATIENCE = 60.0
"""Seconds that a rank may take."""


def in_processes(run: Callable[[int], None], ranks: int) -> None:
    """Runs ``run(rank)`` for all ranks, each in a process. Raises AssertionError for the first that fails, whose
    traceback is printed, and ends those that still run."""

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
