"""The part of the platform suite that tests memory: total, available, and the peak of a run."""

from __future__ import annotations

import os
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
        "measure returns the peak memory of a run": partial(_measure, bench),
        "measure raises what a run raises": partial(_raises, bench),
    }


def _total(bench: Bench) -> str:
    total, available, declared = (
        bench.platform.memory.total(),
        bench.platform.memory.available(),
        bench.facts.memory_bytes,
    )
    assert 0 < available <= total, f"total() is {total} bytes, available() {available}"
    assert not declared or 0.85 <= total / declared <= 1.01, (
        f"memory_bytes is {declared} in the facts, total() {total}: a difference larger than a driver's reserve"
    )
    if bench.device.type == "cpu" and "SC_PHYS_PAGES" in os.sysconf_names:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert max(total, declared) <= there, f"there are {there} bytes, without swap; the platform says {total}"
    return f"{total / (1 << 30):.1f} GiB, {available / (1 << 30):.1f} free"


def _available(bench: Bench) -> str:
    """It must hold in one of a few tries, with increasing sizes, because other processes may share the device, and a
    system may report free memory late."""
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
    """The change of ``available()`` since ``before``; waits until it is most of ``wanted``, or until a timeout."""
    end = time.perf_counter() + _PATIENCE
    while True:
        moved = bench.platform.memory.available() - before
        if moved / wanted >= 0.7 or time.perf_counter() > end:
            return moved
        time.sleep(0.02)


def _measure(bench: Bench) -> str:
    """Runs with one tensor at a time, in any order, with other tensors alive and with memory cached by the
    allocator."""
    kept = _tensor(bench, _SIZES[2])
    _tensor(bench, _SIZES[1])
    declared = set()
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
        declared.add(found // _MIB)
    assert kept.numel() == _SIZES[2]
    both: list[Tensor] = []
    found = bench.platform.memory.measure(lambda: both.extend(_tensor(bench, size) for size in _SIZES[:2]))
    assert found is not None
    assert found >= 0.9 * sum(_SIZES[:2]), f"a run that holds {sum(_SIZES[:2])} bytes at a time is measured at {found}"
    held = [_tensor(bench, _SIZES[1])]
    runs: dict[str, Callable[[], None]] = {"does nothing": lambda: None, "frees memory": held.clear}
    for what, small in runs.items():
        found = bench.platform.memory.measure(small)
        assert found in range(_MIB), f"a run that {what} is measured at {found} bytes"
    return f"{min(declared)} to {max(declared)} MiB"


def _raises(bench: Bench) -> None:
    """And what is measured next is right."""

    def run() -> None:
        _tensor(bench, _SIZES[1])
        raise KeyError("from the run")

    try:
        bench.platform.memory.measure(run)
    except KeyError:
        found = bench.platform.memory.measure(lambda: _allocate(bench, _SIZES[0]))
        good = found is None or 0.9 * _SIZES[0] <= found <= 1.1 * _SIZES[0]
        assert good, f"after a run that raised, one that holds {_SIZES[0]} bytes is measured at {found}"
        return
    raise AssertionError("measure(run) swallowed what run raised; running out of memory would go unnoticed")


def _allocate(bench: Bench, size: int) -> None:
    _tensor(bench, size)


def _tensor(bench: Bench, size: int) -> Tensor:
    """A tensor of ``size`` bytes that is written, so that its memory is committed."""
    return torch.ones(size, dtype=torch.uint8, device=bench.device)
