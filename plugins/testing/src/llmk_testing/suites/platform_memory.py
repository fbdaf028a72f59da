"""The part of the suite of platforms that is about memory: what there is, what is left, and what a run needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from llmk_testing.bench import Bench

_MIB = 1 << 20
_ALLOCATED = 512 * _MIB
_SIZES = (16 * _MIB, 64 * _MIB, 40 * _MIB)
_ROUNDS = 6
_PATIENCE = 1.0


def checks(bench: Bench) -> dict[str, Callable[[], str | None]]:
    """Cases by name."""
    return {
        "memory is what the facts say": partial(_total, bench),
        "available memory follows what is allocated": partial(_available, bench),
        "measure tells the peak of what a run needs": partial(_measure, bench),
        "measure hands on what a run raises": partial(_raises, bench),
    }


def _total(bench: Bench) -> str:
    total, available, told = bench.platform.memory.total(), bench.platform.memory.available(), bench.facts.memory_bytes
    assert 0 < available <= total, f"total() is {total} bytes, available() {available}"
    assert not told or 0.85 <= total / told <= 1.01, (
        f"memory_bytes is {told} in the facts, total() {total}: more than a driver's share apart"
    )
    return f"{total / (1 << 30):.1f} GiB, {available / (1 << 30):.1f} free"


def _available(bench: Bench) -> str:
    """In one of a few tries, of which later ones take more; of a device that others share, in its tendency: they take
    and give meanwhile, and a system may tell late what is free."""
    seen = []
    low, high = (0.15, 3.0) if bench.facts.shared_device else (0.8, 1.2)
    for attempt in range(_ROUNDS):
        before = bench.platform.memory.available()
        size = min(_ALLOCATED << attempt // 2, before // 4)
        tensor = _tensor(bench, size)
        taken = _moved(bench, before, -size)
        del tensor
        back = _moved(bench, before + taken, size)
        if all(low * size <= moved <= high * size for moved in (-taken, back)):
            return f"{-taken / size:.0%} and {back / size:.0%} of {size // _MIB} MiB"
        seen.append(f"of {size // _MIB} by {taken // _MIB} and then by {back // _MIB}")
    raise AssertionError(f"memory was allocated and freed, and available() went (in MiB) {', '.join(seen)}")


def _moved(bench: Bench, before: int, wanted: int) -> int:
    """By how much ``available()`` is more than ``before``, as soon as that is most of what is ``wanted``, or time is
    up."""
    end = time.perf_counter() + _PATIENCE
    while True:
        moved = bench.platform.memory.available() - before
        if moved / wanted >= 0.7 or time.perf_counter() > end:
            return moved
        time.sleep(0.02)


def _measure(bench: Bench) -> str:
    """One tensor at a time, in any order, beside some that stay and what the allocator has from before."""
    kept = _tensor(bench, _SIZES[2])
    _tensor(bench, _SIZES[1])
    told = set()
    for order in permutations(_SIZES):
        calls: list[int] = []

        def run(order: tuple[int, ...] = order, calls: list[int] = calls) -> None:
            for size in order:
                _tensor(bench, size)
                calls.append(size)

        found = bench.platform.memory.measure(run)
        assert calls == list(order), f"measure(run) called run {len(calls) // len(order)} times, not once"
        if found is None:
            return "unknown"
        assert 0.9 * max(_SIZES) <= found <= 1.1 * max(_SIZES), (
            f"a run that holds {' then '.join(str(size // _MIB) for size in order)} MiB, one at a time, is measured at"
            f" {found / _MIB:.0f} MiB, not at {max(_SIZES) // _MIB}"
        )
        told.add(found // _MIB)
    assert kept.numel() == _SIZES[2]
    both: list[Tensor] = []
    found = bench.platform.memory.measure(lambda: both.extend(_tensor(bench, size) for size in _SIZES[:2]))
    assert found is not None
    assert found >= 0.9 * sum(_SIZES[:2]), f"a run that holds {sum(_SIZES[:2])} bytes at a time is measured at {found}"
    return f"{min(told)} to {max(told)} MiB"


def _raises(bench: Bench) -> None:
    def run() -> None:
        raise KeyError("from the run")

    try:
        bench.platform.memory.measure(run)
    except KeyError:
        return
    raise AssertionError("measure(run) swallowed what run raised; running out of memory would go unnoticed")


def _tensor(bench: Bench, size: int) -> Tensor:
    """So many bytes that are written to, so that they are there."""
    return torch.ones(size, dtype=torch.uint8, device=bench.device)
