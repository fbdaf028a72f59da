"""The part of the platform suite that records steps: what graphs replay, and where."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

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
        "graphs replay results of any form": partial(_forms, bench),
        "concurrent parts run after what precedes them, and before what follows": partial(_concurrent, bench),
        "a replay runs the step once, and a capture on demand never": partial(_once, bench),
        "what graphs hold is theirs": partial(_kept, bench),
        "a graph that fails to record leaves no trace": partial(_failed, bench),
        "a graph does not keep what the host saw": partial(_looks, bench),
        "graphs that are dropped leave nothing": partial(_dropped, bench),
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


def _concurrent(bench: Bench) -> str:
    """Parts of very different sizes, one after the other and in each other, whose inputs and results are memory that
    is used again; recorded, and not."""
    graphs, size = _facet(bench), 512
    x = torch.ones(size, size, device=bench.device)
    weight = torch.randn(size, size, generator=bench.random("weight")).to(bench.device) / size**0.5

    def short(part: Tensor, by: float) -> Tensor:
        return part * by + 1

    def long(part: Tensor) -> Tensor:
        for _ in range(4):
            part = (part @ weight).tanh()
        return part

    def both(part: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = graphs.concurrent(partial(long, part), partial(short, part, -0.5))
        return found

    def run() -> Tensor:
        part = x
        for _ in range(3):
            found = graphs.concurrent(partial(short, part, 0.5), partial(long, part))
            assert len(found) == 2, f"of two parts, {len(found)} results are returned"
            part = found[0] + found[1]
            one, (two, three) = graphs.concurrent(partial(short, part, 2.0), partial(both, part))
            part = one - two * 0.5 + three
        return part

    def right() -> Tensor:
        part = x
        for _ in range(3):
            part = short(part, 0.5) + long(part)
            part = short(part, 2.0) - long(part) * 0.5 + short(part, -0.5)
        return part

    _close(run(), right(), "what is computed concurrently, and not recorded,")
    replay = graphs.capture(run)
    for number in range(_ROUNDS):
        x.copy_(torch.randn(size, size, generator=bench.random(number)))
        found = replay()
        bench.platform.device.synchronize()
        _close(found, right(), f"replay {number} of what is computed concurrently (seed {bench.seed})")
    _check_raised(graphs, partial(long, x))
    replay = graphs.capture(run)
    _close(replay(), right(), "what is computed concurrently, after a part that raised,")
    return f"{_ROUNDS} replays"


def _check_raised(graphs: Graphs, good: Callable[[], Tensor]) -> None:
    """What a part raises arrives, recorded or not, whichever of the two it is."""
    for parts in ((_raising, good), (good, _raising)):
        alone = partial(graphs.concurrent, *parts)
        for where, call in (("", alone), (", recorded,", lambda alone=alone: graphs.capture(alone)())):
            try:
                call()
            except KeyError:
                continue
            raise AssertionError(f"what one of two concurrent parts raises{where} is lost")


def _raising() -> Tensor:
    raise KeyError("from a part")


@dataclass(frozen=True, slots=True)
class _Result:
    """As steps return one."""

    hidden: Tensor
    parts: tuple[Tensor, ...]


def _forms(bench: Bench) -> str:
    """Tensors, tuples, lists and dataclasses of such, in each other; of no and of one element, turned, and an input."""
    graphs, x = _facet(bench), torch.zeros(4, 6, device=bench.device)

    def parts() -> tuple[Tensor, ...]:
        return x * 2, x.sum(), x[:, :0] + 1, (x + 1).T, x.argmax(-1), x > 0, x

    forms: dict[str, Callable[[], Any]] = {
        "a tensor": lambda: x * 3,
        "a tuple": parts,
        "a list": lambda: [x + 1, *parts()],
        "a dataclass": lambda: _Result(x + 3, parts()),
        "a tuple of a dataclass and a list": lambda: (_Result(x + 5, (x - 1,)), [x * 4, x * 5]),
    }
    for name, run in forms.items():
        replay = graphs.capture(run)
        for number in range(_ROUNDS):
            x.copy_(torch.randn(4, 6, generator=bench.random(number)))
            found, right = replay(), run()
            bench.platform.device.synchronize()
            assert type(found) is type(right), f"a step that returns {name} replays {type(found).__name__}"
            pairs = list(zip(_leaves(found), _leaves(right), strict=True))
            for at, (one, other) in enumerate(pairs):
                assert one.dtype == other.dtype, f"tensor {at} of {name} is replayed as {one.dtype}"
                assert one.shape == other.shape, f"tensor {at} of {name} is replayed as {list(one.shape)}"
                _close(one.float(), other.float(), f"tensor {at} of {name}, replay {number} (seed {bench.seed})")
    return f"{len(forms)} forms"


def _leaves(result: Any) -> list[Tensor]:
    if isinstance(result, _Result):
        return [result.hidden, *result.parts]
    return [leaf for part in result for leaf in _leaves(part)] if isinstance(result, (tuple, list)) else [result]


def _once(bench: Bench) -> str:
    """What a step changes, such as a cache, is changed once by each replay."""
    graphs, count = _facet(bench), torch.zeros(3, device=bench.device)

    def run() -> Tensor:
        count.add_(1)
        return count * 2

    replay = graphs.capture(run)
    bench.platform.device.synchronize()
    before = float(count[0])
    assert not graphs.on_demand or not before, "captures are on demand, and this one ran the step"
    for number in range(1, 1 + _ROUNDS):
        found = replay()
        bench.platform.device.synchronize()
        now = count.tolist()
        assert now == [before + number] * 3, f"{number} replays of a step that adds 1 add {now[0] - before:g}"
        assert found.tolist() == [2 * each for each in now], f"replay {number} returns {found.tolist()}"
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
    """The exception arrives, and the next graph replays as ever; so does one that is recorded on demand, if its step
    failed at first."""
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
    if graphs.on_demand:
        reasons = ["at first"]

        def at_last() -> Tensor:
            if reasons:
                raise KeyError(reasons.pop())
            return x * 5

        replay = graphs.capture(at_last)
        with suppress(KeyError):
            replay()
        _close(replay(), x * 5, "a replay after one that failed")
    if bench.device.type == "cpu":  # elsewhere, what such an operator does is not known, or ends the process
        _check_later(graphs, x)


def _check_later(graphs: Graphs, x: Tensor) -> None:
    """A replay that fails when others of the same graph did not: it raises, and the next one is right."""
    places = torch.zeros(4, dtype=torch.int64)
    steps: dict[str, Callable[[], Tensor]] = {
        "index_select": lambda: x.index_select(0, places),
        "gather": lambda: x.gather(0, places[:, None].expand(4, 4)),
    }
    for name, run in steps.items():
        replay = graphs.capture(run)
        for number in range(_ROUNDS):
            places.fill_(1)
            x.copy_(torch.arange(16.0).view(4, 4) + number)
            _close(replay(), run(), f"replay {2 * number} of {name}, where every other one fails")
            places.fill_(99)
            try:
                replay()
            except (RuntimeError, IndexError):
                continue
            raise AssertionError(f"a replay of {name}, whose indices are wrong by then, raises nothing")


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
    _records_and_draws(graphs, x)
    return ", ".join(answers) or "values are followed"


def _records_and_draws(graphs: Graphs, x: Tensor) -> None:
    """What was refused must leave neither the allocator nor the generator of random numbers in a capture."""
    try:
        replay = graphs.capture(lambda: x * 5)
        with torch.random.fork_rng(devices=[]):  # what is drawn here is not the platform's doing
            torch.rand(4, device=x.device)
    except RuntimeError as error:
        raise AssertionError(f"after a graph that was refused, {str(error).splitlines()[0]!r} is raised") from error
    _close(replay(), x * 5, "the graph after one that was refused")


def _dropped(bench: Bench) -> str:
    """A graph that is not held any more frees what its step held."""
    graphs, alive = _facet(bench), []
    for _ in range(_ROUNDS):
        x = torch.ones(64, 64, device=bench.device)
        replay = graphs.capture(partial(_chain, x))
        replay()
        bench.platform.device.synchronize()
        alive.append(weakref.ref(x))
        del replay, x
    gc.collect()
    # The last one may stay where a facet reuses its memory for the next.
    held = sum(one() is not None for one in alive)
    assert held <= 1, f"of {_ROUNDS} graphs that are dropped, {held} still hold their inputs"
    return f"{held} of {_ROUNDS} are held"


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
