"""Checks that a kernel can be captured in a graph and replayed; on platforms without graphs, that it does not
synchronize with the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmk.api import KernelSpec, Needs, Tier
from llmk_testing.bench import Bench
from llmk_testing.watch import never_waiting


def check_recorded(
    bench: Bench,
    run: Callable[[], Any],
    load: Callable[[int], None],
    judge: Callable[[int, Any], float],
    count: int,
    *,
    portable: bool = False,
) -> str:
    """Captures ``run`` in a graph and replays it on other inputs.

    If the platform has no graphs, runs it on each input and fails if it synchronizes with the device. A ``portable``
    kernel is recorded on other devices than this one, too, so it must not synchronize where this one has none to wait
    for.

    Args:
        load: copies input ``i`` of ``count`` to the tensors that ``run`` reads.
        judge: compares the result for input ``i`` with the expected one.
    """
    load(0)
    graphs = bench.platform.graphs
    if graphs is None:
        run()  # warm-up
        for i in range(count):
            load(i)
            with never_waiting():
                out = run()
            judge(i, out)
        return "does not synchronize; the platform has no graphs"
    if portable:
        with never_waiting():
            run()
    replay = graphs.capture(run)
    errors = []
    for i in (*range(count), 0):
        load(i)
        out = replay()
        bench.platform.device.synchronize()
        errors.append(judge(i, out))
    return f"relative error {max(errors):.1e}"


def is_portable(spec: KernelSpec) -> bool:
    """Whether it may run on any platform: as a step is recorded there, it waits for no device."""
    return spec.tier is Tier.PORTABLE and replace(spec.needs, dtypes=()) == Needs()
