"""Boots checkpoints on a bench's platform, in one rank or in several ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from llmk.api.sharding import parallel_problems
from llmk.config import load
from llmk.nn.parallel import Parallel
from llmk.planning.boot import Boot, boot
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.ranks import Meeting, on_all

T = TypeVar("T")


def boot_on(bench: Bench, folder: Path, **settings: Any) -> Boot:
    """Boots as the engine does, in float32 and with small blocks unless ``settings`` (dotted paths) override that, and
    without config files and environment variables."""
    own = {"model.path": str(folder), "model.dtype": "float32", "cache.block_size": 8}
    return boot(load({**own, "platform.use": bench.facts.name, **settings}, environ={}))


def on_ranks(
    bench: Bench,
    folder: Path,
    run: Callable[[Boot, Parallel], T],
    *,
    tensor: int = 1,
    pipeline: int = 1,
    **settings: Any,
) -> list[T]:
    """The result of ``run(boot, parallel)`` on each of ``tensor * pipeline`` ranks.

    Raises Skip if the model or the platform does not support this parallelism.
    """
    alone = boot_on(bench, folder, **settings)
    if problems := parallel_problems(alone.facts, bench.facts, tensor, pipeline):
        raise Skip("; ".join(problem.message for problem in problems))
    spread = {"parallel.tensor": tensor, "parallel.pipeline": pipeline}
    booted, meeting = boot_on(bench, folder, **settings, **spread), Meeting(tensor, pipeline)
    _load_linear_algebra(bench.device)
    return on_all(meeting, lambda rank: run(booted, meeting.place(rank)))


def _load_linear_algebra(device: torch.device) -> None:
    """torch loads a device's linear algebra library at the first call, which is not thread-safe, so this loads it
    beforehand. Errors are ignored: without the library, only models that need it fail."""
    one = torch.ones(1, 1, device=device)
    with suppress(RuntimeError):
        torch.linalg.solve_triangular(one, one, upper=False)
