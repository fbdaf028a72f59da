"""Checks one kernel against its reference, and times it against what memory and matrix units can do."""

from __future__ import annotations

import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

REPLAYS = 7
CALLS = 24
"""Calls in one graph at least."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model that is measured."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    experts: int = 0
    top_k: int = 0


SHAPES = (
    Shape("0.6B", 1024, 3072, 16, 8, 151936),
    Shape("8B", 4096, 12288, 32, 8, 151936),
    Shape("30B-A3B", 2048, 768, 32, 4, 151936, experts=128, top_k=8),
)
TINY = (Shape("tiny", 64, 96, 4, 2, 320, head_dim=32, dtype=torch.float32),)
"""For trying the cases out where nothing is to be measured."""
BATCHES = (1, 8, 64, 256)
PREFILL = 2048


@dataclass(slots=True)
class Case:
    """One kernel at one shape.

    Attributes:
        run: calls it on one of ``sets`` sets of inputs; what it returns is compared.
        expected: what it is to return on set 0, within ``tolerance`` (relative, in the 2-norm).
        bytes, flops: what it must move and compute at least.
    """

    run: Callable[[int], Any]
    expected: Callable[[], Any]
    bytes: int
    flops: int = 0
    sets: int = 1
    tolerance: float = 8e-3


Named = tuple[str, Callable[[], Case]]
"""A case's name, and what makes it."""


@dataclass(slots=True)
class Bench:
    """Runs cases and keeps count. ``seconds`` is when to stop."""

    device: torch.device
    seconds: float
    copy_rate: float = 0.0
    flop_rate: float = 0.0
    failed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def module(self) -> Any:
        """torch's module of the device."""
        return torch.get_device_module(self.device)

    def calibrate(self) -> None:
        """Measures what a large copy and a large product reach."""
        if self.device.type == "cpu":
            self.copy_rate, self.flop_rate = 1e10, 1e11
            return
        source = torch.randn(1 << 28, device=self.device).to(torch.bfloat16)
        target = torch.empty_like(source)
        self.copy_rate = 2 * source.nbytes / self.time(lambda i: target.copy_(source), 1, calls=4)
        a = torch.randn(8192, 8192, device=self.device).to(torch.bfloat16)
        b = torch.randn(8192, 8192, device=self.device).to(torch.bfloat16)
        self.flop_rate = 2 * 8192**3 / self.time(lambda i: a @ b, 1, calls=4)
        print(f"copy {self.copy_rate / 1e9:,.0f} GB/s, bf16 product {self.flop_rate / 1e12:,.0f} TFLOP/s")

    def run(self, cases: Iterable[Named], only: re.Pattern[str]) -> None:
        """Checks and times every case whose name has ``only``; what fails is told and left behind."""
        for name, make in cases:
            if not only.search(name):
                continue
            if time.monotonic() - self.started > self.seconds:
                print(f"{name:<44} not run: the time is up")
                self.failed.append(name)
                continue
            try:
                self._measure(name, make())
            except Exception:
                print(f"{name:<44} FAILED\n{traceback.format_exc()}", flush=True)
                self.failed.append(name)

    def _measure(self, name: str, case: Case) -> None:
        with _poisoned():
            actual = case.run(0)
        error = relative_error(actual, case.expected())
        if not error <= case.tolerance:
            self.failed.append(name)
        seconds = self.time(case.run, case.sets)
        by_bytes, by_flops = case.bytes / self.copy_rate, case.flops / self.flop_rate
        rate = f"{case.bytes / seconds / 1e9:6,.0f} GB/s"
        if by_flops > by_bytes:
            rate = f"{case.flops / seconds / 1e12:6,.0f} TF/s"
        share = max(by_bytes, by_flops) / seconds
        verdict = "" if error <= case.tolerance else "  WRONG"
        print(f"{name:<44}{1e6 * seconds:9.2f} us {rate} {share:5.0%} err {error:.0e}{verdict}", flush=True)

    def time(self, run: Callable[[int], Any], sets: int, calls: int = CALLS) -> float:
        """Seconds per call: the median of several replays of a graph of calls that take the sets in turn, or of as
        many plain calls where the device has no graphs."""
        if self.device.type == "cpu":
            started = time.perf_counter()
            run(0)
            return time.perf_counter() - started
        calls = sets * -(-calls // sets)
        for i in range(min(sets, 2)):
            run(i)
        self.module.synchronize()

        def all_calls() -> None:
            for i in range(calls):
                run(i % sets)

        replay = self._captured(all_calls) or all_calls
        for _ in range(2):
            replay()
        times = []
        for _ in range(REPLAYS):
            begin, end = self.module.Event(enable_timing=True), self.module.Event(enable_timing=True)
            begin.record()
            replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / calls)
        return statistics.median(times)

    def _captured(self, run: Callable[[], Any]) -> Callable[[], Any] | None:
        graph_type = getattr(self.module, "CUDAGraph", None) or getattr(self.module, "XPUGraph", None)
        if graph_type is None:
            return None
        graph = graph_type()
        with self.module.graph(graph):
            run()
        return graph.replay


@contextmanager
def _poisoned() -> Iterator[None]:
    """Fresh memory holds NaN meanwhile, so that an element which nobody wrote is noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def relative_error(actual: Any, expected: Any) -> float:
    """The largest relative error in the 2-norm among the tensors of both; infinite where one has NaN."""
    if isinstance(actual, Tensor):
        assert actual.shape == expected.shape, f"{tuple(actual.shape)} for {tuple(expected.shape)}"
        a, e = actual.double(), expected.double()
        norm = e.norm().clamp(min=1e-30)
        error = float((a - e).norm() / norm)
        return error if error == error else float("inf")
    return max(relative_error(a, e) for a, e in zip(actual, expected, strict=True))
