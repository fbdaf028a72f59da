"""Ranks that are processes, over gloo: what sums over them, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import in_processes
from torch import Tensor

from llmk.api import AllReduce, Verdict, no
from llmk.config import load
from llmk.engine.processes.ranks.worker import join
from llmk.nn.blocks.sublayer import RankSum
from llmk.nn.distributed import Distributed
from llmk.planning.boot import boot
from llmk.reference.norms import make_add_rms_norm, rms_norm

CPU = torch.device("cpu")


class Gathering:
    """Follows ``llmk.api.AllReduce``, for bfloat16 of up to 64 bytes."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.calls = 0

    def __str__(self) -> str:
        return "gathered"

    def takes(self, num_bytes: int, dtype: torch.dtype) -> bool:
        return num_bytes <= 64 and dtype == torch.bfloat16

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(parts, x, group=self._group)
        return in_order(parts)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """For one row."""
        if x.shape[0] > 1:
            return None
        total = residual + self(x)
        return rms_norm(total, weight, eps), total


def in_order(parts: list[Tensor]) -> Tensor:
    """The sum in float32, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total += part.float()
    return total.to(parts[0].dtype)


def offer(group: Any, device: torch.device) -> AllReduce | Verdict:
    assert device == CPU
    return Gathering(group)


def refuse(group: Any, device: torch.device) -> AllReduce | Verdict:
    return no("peer_memory", found="no link")


def on_all(run: Callable[[Distributed], None], ranks: int, folder: Path, *, in_order: bool = False) -> None:
    """Runs ``run`` on joined ranks."""

    def joined(rank: int) -> None:
        parallel = Distributed(rank, ranks, in_order=in_order)
        parallel.join("gloo", str(folder / "store"), CPU)
        run(parallel)

    in_processes(joined, ranks)


def values(rank: int, count: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A rank's addend."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


def test_the_platform_sums_what_it_takes(tmp_path: Path) -> None:
    def run(parallel: Distributed) -> None:
        assert parallel.use_own(offer, CPU) == "gathered"
        own: Any = parallel.own
        for count, dtype, calls in ((32, torch.bfloat16, 1), (33, torch.bfloat16, 1), (8, torch.float32, 1)):
            each = [values(rank, count, dtype) for rank in range(2)]
            assert torch.equal(parallel.all_reduce(each[parallel.tensor_rank].clone()), in_order(each))
            assert own.calls == calls
        assert parallel.num_calls == 3

    on_all(run, 2, tmp_path)


def test_a_joint_sums_over_ranks_at_once_where_the_platform_does(tmp_path: Path) -> None:
    apart = make_add_rms_norm({"rms_norm": rms_norm})
    norm: Any = SimpleNamespace(weight=values(9, 16), eps=1e-5)
    joined = []

    def join(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        assert residual is not None
        joined.append(x)
        return apart(x, residual, norm.weight, norm.eps)

    def run(parallel: Distributed) -> None:
        parallel.use_own(offer, CPU)
        for rows, left in ((1, 0), (2, 1)):
            each, residual = [values(rank, 16 * rows).view(rows, 16) for rank in range(2)], values(7, 16 * rows)
            total = residual.view(rows, 16) + in_order(each)
            found = RankSum(parallel, join, norm)(each[parallel.tensor_rank].clone(), residual.view(rows, 16))
            assert torch.equal(found[0], rms_norm(total, norm.weight, norm.eps))
            assert torch.equal(found[1], total)
            assert len(joined) == left
        assert parallel.num_calls == 2

    on_all(run, 2, tmp_path)


def test_the_library_sums_where_the_platform_says_why_it_does_not(tmp_path: Path) -> None:
    def run(parallel: Distributed) -> None:
        assert parallel.use_own(refuse, CPU) == "by torch.distributed (peer memory: no link)"
        assert parallel.own is None
        assert torch.equal(parallel.all_reduce(torch.ones(4)), torch.full((4,), 2.0))

    on_all(run, 2, tmp_path)


def test_what_is_gathered_is_side_by_side(tmp_path: Path) -> None:
    def run(parallel: Distributed) -> None:
        each = [values(rank, 12, torch.float32).view(4, 3).T for rank in range(3)]
        assert torch.equal(parallel.all_gather(each[parallel.tensor_rank]), torch.cat(each, dim=1))

    on_all(run, 3, tmp_path)


def test_sums_in_order_have_the_same_bits_by_library_and_platform(tmp_path: Path) -> None:
    """Of three ranks, as rounding each sum of two differs from rounding once."""

    def run(parallel: Distributed) -> None:
        x = values(parallel.tensor_rank, 32)
        by_library = parallel.all_reduce(x.clone())
        parallel.use_own(offer, CPU)
        assert torch.equal(parallel.all_reduce(x.clone()), by_library)
        assert parallel.num_calls == 2

    on_all(run, 3, tmp_path, in_order=True)


@pytest.mark.parametrize(("wanted", "used"), [("auto", True), ("library", False)])
def test_a_worker_uses_it_unless_the_configuration_says_otherwise(wanted: str, used: bool, tmp_path: Path) -> None:
    booted = boot(load({"parallel.tensor": 2, "parallel.all_reduce": wanted}, environ={}), on="cpu")
    collectives = SimpleNamespace(backend="gloo", recordable=False, all_reduce=offer)
    device = SimpleNamespace(torch_device=lambda index: CPU)
    platform: Any = SimpleNamespace(collectives=collectives, device=device)

    def run(rank: int) -> None:
        start: Any = SimpleNamespace(rank=rank, index=rank, near=True)
        parallel: Any = join(booted, platform, start, lambda: str(tmp_path / "store"))
        assert (parallel.own is not None) == used
        assert torch.equal(parallel.all_reduce(torch.ones(8, dtype=torch.bfloat16)), torch.full((8,), 2.0).bfloat16())

    in_processes(run, 2)
