"""Recording a kernel and replaying it, on platforms that can; elsewhere, that it waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmk_testing.bench import Bench
from llmk_testing.watch import never_waiting


def check_recorded(
    bench: Bench, run: Callable[[], Any], load: Callable[[int], None], judge: Callable[[int, Any], float], count: int
) -> str:
    """Records ``run`` and replays it on other inputs.

    Where the platform has no graphs, runs it on each of them and fails where it waits for the device.

    Args:
        load: puts input ``i`` of ``count`` where ``run`` reads it.
        judge: compares what came of input ``i`` with what is right.
    """
    load(0)
    graphs = bench.platform.graphs
    if graphs is None:
        run()  # whatever is looked up once
        for i in range(count):
            load(i)
            with never_waiting():
                out = run()
            judge(i, out)
        return "waits for nothing; the platform records no graphs"
    replay = graphs.capture(run)
    errors = []
    for i in (*range(count), 0):
        load(i)
        out = replay()
        bench.platform.device.synchronize()
        errors.append(judge(i, out))
    return f"relative error {max(errors):.1e}"
