"""The part of the platform suite that records steps: what graphs replay, and where."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from llmk.api import Graphs, KernelSpec, PlatformSpec
from llmk_testing import suites
from llmk_testing.bench import Bench
from llmk_testing.case import Skip

_ROUNDS = 3


def checks(spec: PlatformSpec, bench: Bench) -> dict[str, Callable[[], str | None]]:
    """Cases by name."""
    return {
        "graphs replay on new inputs": partial(_graphs, bench),
        "graphs replay all kinds of operators, in order": partial(_operators, bench),
        "what graphs hold is theirs": partial(_kept, bench),
        "a graph that fails to record leaves no trace": partial(_failed, bench),
        "a graph does not keep what the host saw": partial(_looks, bench),
        "its plugin's kernels replay in its graphs": partial(_own, spec, bench),
    }


def _facet(bench: Bench) -> Graphs:
    if bench.platform.graphs is None:
        raise Skip("the platform has no graphs facet")
    return bench.platform.graphs


def _graphs(bench: Bench) -> str:
    graphs = _facet(bench)
    weight = torch.randn(32, 32, generator=bench.random("weight")).to(bench.device)
    x = torch.ones(8, 32, device=bench.device)
    replay = graphs.capture(lambda: (x @ weight).relu())
    places = set()
    for number in range(_ROUNDS):
        x.copy_(torch.randn(8, 32, generator=bench.random(number)))
        found = replay()
        bench.platform.device.synchronize()
        places.add(found.data_ptr())
        _close(found, (x @ weight).relu(), f"replay {number} on new inputs (seed {bench.seed})")
    assert len(places) == 1, f"replays return {len(places)} different addresses, but later kernels need a fixed one"
    return f"{_ROUNDS} replays"


def _operators(bench: Bench) -> str:
    """Views, copies, operators in place, on several results, and of other dtypes."""
    x = torch.ones(6, 16, device=bench.device)
    places = torch.zeros(6, dtype=torch.int64, device=bench.device)

    def run() -> tuple[Tensor, ...]:
        made = torch.empty_like(x)
        made.copy_(x * 2)
        made[1:3] += x[3:5]
        made.mul_(0.5)
        left, right = made.view(6, 4, 4).unbind(1)[:2]
        joined = torch.cat([left, right.transpose(0, 1).reshape(6, 4)], dim=-1)
        values, order = joined.sort(dim=-1, stable=True)
        taken = made.index_select(0, places)
        zeros = torch.zeros_like(values).add_(order.to(values.dtype))
        return joined, values, order, taken, zeros, made.to(torch.bfloat16).float().sum(-1)

    x.copy_(torch.randn(6, 16, generator=bench.random("first")))
    replay = _facet(bench).capture(run)
    for number in range(_ROUNDS):
        x.copy_(torch.randn(6, 16, generator=bench.random(number)))
        places.copy_(torch.randperm(6, generator=bench.random(number)))
        found = [each.clone() for each in replay()]
        bench.platform.device.synchronize()
        for at, (one, right) in enumerate(zip(found, run(), strict=True)):
            assert one.dtype == right.dtype, f"result {at} of a replay is {one.dtype}, expected {right.dtype}"
            _close(one.float(), right.float(), f"result {at} of replay {number} (seed {bench.seed})")
    return f"{_ROUNDS} replays"


def _kept(bench: Bench) -> str:
    """Memory that a graph uses must not be allocated to others, before or after a replay; two graphs must not
    conflict."""
    graphs = _facet(bench)
    inputs = [torch.full((size, 64), 1.0 + size, device=bench.device) for size in (256, 64)]
    replays = [graphs.capture(partial(_chain, x)) for x in inputs]
    # The allocator must not return memory that the graphs write to.
    others = [torch.full((256, 64), 7.0, device=bench.device) for _ in range(8)]
    for x, replay in [*zip(inputs, replays, strict=True)] * 2:
        found = replay().clone()
        bench.platform.device.synchronize()
        _close(found, _chain(x), "a replay after other tensors were made")
        assert all(bool((other == 7).all()) for other in others), (
            "a replay wrote to a tensor that was made after capture"
        )
        x.mul_(0.75)
    return f"{len(replays)} graphs"


def _failed(bench: Bench) -> None:
    """The exception arrives, and the next graph replays as ever."""
    graphs, x = _facet(bench), torch.ones(4, 4, device=bench.device)

    def broken() -> Tensor:
        (x + 1).relu()
        raise KeyError("from the run")

    try:
        graphs.capture(broken)()
    except KeyError:
        pass
    else:
        raise AssertionError("a graph whose run raises was recorded")
    replay = graphs.capture(lambda: x * 3)
    for value in (1.0, 2.0):
        x.fill_(value)
        _close(replay(), x * 3, "the graph after one that failed")


def _looks(bench: Bench) -> str:
    """A step that reads a value on the host can't be replayed: it is refused, or follows the value."""
    graphs, x = _facet(bench), torch.ones(4, device=bench.device)
    looks: dict[str, Callable[[], Tensor]] = {
        "item": lambda: x + x.sum().item(),
        "bool": lambda: x * 2 if x.sum() > 4 else x * 3,
        "nonzero": lambda: x[x > 1],
    }
    answers = []
    for name, run in looks.items():
        x.fill_(1.0)
        try:
            replay = graphs.capture(run)
            replay()
            x.fill_(2.0)
            found = replay()
        except RuntimeError:
            answers.append(f"{name} is refused")
            continue
        finally:
            bench.platform.device.synchronize()
        right = run()
        same = found.shape == right.shape and torch.equal(found, right)
        assert same, f"a graph that looks at values ({name}) replays what it saw when it was recorded: {found}"
    return ", ".join(answers) or "values are followed"


def _own(spec: PlatformSpec, bench: Bench) -> str:
    """One case of each kernel for ops and linear layers that may be recorded."""
    _facet(bench)
    plugin = next((each.plugin for each in bench.registry.platforms if each.spec.id == spec.id), None)
    every = [each.spec for each in bench.registry.of(KernelSpec) if plugin is not None and each.plugin is plugin]
    tried = []
    for kernel in (each for each in every if each.kind in ("op", "linear") and each.capture != "none"):
        cases = suites.cases(kernel.kind, kernel, bench)
        if case := next((each for each in cases if each.name.startswith("can be recorded")), None):
            case.run()
            tried.append(kernel.id)
    if not tried:
        raise Skip("its plugin has no kernels that may be recorded")
    return f"{len(tried)} kernels"


def _chain(x: Tensor) -> Tensor:
    for _ in range(4):
        x = (x * 1.5 + 1).relu()
    return x


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    """A captured GEMM may have another order of summation."""
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-9))
    assert error <= 1e-4, f"{what} is {error:.1e} (relative) from the uncaptured result; at most 1e-4 is allowed"
