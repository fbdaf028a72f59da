"""The part of the platform suite that launches work: the device and its facts, and compiling."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from llmk.api import Platform
from llmk.kernel.contracts import check_made
from llmk_testing.bench import Bench
from llmk_testing.case import Skip

_WORK_SECONDS = 0.1
_GEMMS, _LARGEST_SIZE = 8, 1 << 14
_ROUNDS = 3


def checks(bench: Bench) -> dict[str, Callable[[], str | None]]:
    """Cases by name."""
    return {
        "facets are complete, or None": partial(_facets, bench),
        "the device is of the type that the facts say": partial(_device, bench),
        "setup sets the number of host threads": partial(_threads, bench),
        "every dtype of the facts can be computed with": partial(_dtypes, bench),
        "execution is asynchronous if and only if the facts say so": partial(_asynchronous, bench),
        "synchronize waits": partial(_synchronize, bench),
        "compiling ahead can be entered": partial(_compiling, bench),
    }


def _facets(bench: Bench) -> None:
    platform = bench.platform
    assert platform.facts == bench.facts, f"the platform's facts are {platform.facts}, not the given {bench.facts}"
    check_made(platform, "platform")
    declared = "graphs" in bench.facts.features
    assert declared == (platform.graphs is not None), (
        f"the facts {'have' if declared else 'lack'} the feature 'graphs', the facet is {platform.graphs}"
    )
    demand = platform.graphs.on_demand if platform.graphs else 0
    assert type(demand) is int, f"graphs.on_demand is {demand!r}, not a number of requests"
    assert demand >= 0, f"graphs.on_demand is {demand}, not a number of requests"


def _device(bench: Bench) -> str:
    device = bench.platform.device.torch_device(0)
    assert device.type == bench.facts.device_type, f"torch_device(0) is {device}, device_type {bench.facts.device_type}"
    assert bench.platform.device.torch_device(0) == device, "torch_device(0) changes"
    found = (torch.arange(4, device=device) * 2).tolist()
    assert found == [0, 2, 4, 6], f"arange(4) * 2 on {device} is {found}"
    return str(device)


def _threads(bench: Bench) -> str:
    before = torch.get_num_threads()
    try:
        for wanted in (1, 2):
            bench.platform.device.setup(0, wanted)
            found = torch.get_num_threads()
            assert found == wanted, f"setup(0, threads={wanted}) leaves torch with {found}"
        advised = set()
        for others in (1, 2, 3):
            torch.set_num_threads(others)
            bench.platform.device.setup(0)
            advised.add(torch.get_num_threads())
        assert len(advised) == 1 or advised == {1, 2, 3}, f"setup(0) leaves torch with {sorted(advised)} threads"
        return f"{min(advised)} advised"
    finally:
        torch.set_num_threads(before)


def _dtypes(bench: Bench) -> str:
    for name in bench.facts.dtypes:
        try:
            x = torch.full((8, 8), 2.0, dtype=getattr(torch, name), device=bench.device)
            found = ((x @ x) + x).float().cpu()
        except RuntimeError as error:
            raise AssertionError(f"the facts say {name}, but an 8x8 GEMM raises {error}") from error
        assert bool((found == 34).all()), f"8 * 2 * 2 + 2 in {name} is {float(found.flatten()[0])}"
    return ", ".join(bench.facts.dtypes)


def _work(bench: Bench) -> Callable[[], Tensor]:
    """A few GEMMs that take far longer to run than to launch."""
    size = 128

    def run() -> Tensor:
        y = x
        for _ in range(_GEMMS):
            y = y @ x
        return y

    while True:
        x = torch.full((size, size), 1.0 / size, device=bench.device)
        run()
        if _timed(bench.platform, run)[1] >= _WORK_SECONDS or size >= _LARGEST_SIZE:
            return run
        size *= 2


def _timed(platform: Platform, run: Callable[[], object]) -> tuple[float, float]:
    """Seconds until ``run`` returned, and until the device was done."""
    platform.device.synchronize()
    start = time.perf_counter()
    run()
    issued = time.perf_counter() - start
    platform.device.synchronize()
    return issued, time.perf_counter() - start


def _asynchronous(bench: Bench) -> str:
    work, declared = _work(bench), "asynchronous" in bench.facts.features
    share = min(issued / total for issued, total in (_timed(bench.platform, work) for _ in range(_ROUNDS)))
    assert declared == (share < 0.5), (
        f"the facts {'have' if declared else 'lack'} the feature 'asynchronous', and launched work had run for"
        f" {share:.0%} of its time when the host continued"
    )
    return f"the host continues after {share:.0%}"


def _synchronize(bench: Bench) -> str:
    """A read after synchronize() must not wait."""
    work = _work(bench)
    start = time.perf_counter()
    result = work()
    bench.platform.device.synchronize()
    done = time.perf_counter()
    result[0, 0].item()
    read, total = time.perf_counter() - done, done - start
    assert read < max(0.2 * total, 0.01), (
        f"after synchronize() a read still took {read:.3f} s, the work before it {total:.3f} s"
    )
    return f"work {total:.3f} s, read {read:.4f} s"


def _compiling(bench: Bench) -> str:
    compiling = bench.platform.compiling
    if compiling is None:
        raise Skip("the platform has no compiling facet")
    for _ in range(2):
        with compiling.ahead():
            torch.zeros(4, device=bench.device).add_(1)
    bench.platform.device.synchronize()
    found = torch.zeros(4, device=bench.device).add_(1).tolist()
    assert found == [1.0] * 4, f"after compiling ahead, 0 + 1 is {found[0]}"
    return "twice"
