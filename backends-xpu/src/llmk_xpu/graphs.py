"""Graphs of SYCL: a step's launches, captured once and replayed as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch


class SYCLGraphs:
    """Captures on a stream of its own, into one pool of memory that all graphs share: they must be replayed one at a
    time. Nothing else may be launched on the device during a capture."""

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run`` after running it once, which compiles kernels and makes the libraries' workspaces: a capture
        allows neither. The replay returns what ``run`` returned while it was captured, at fixed addresses, valid until
        any graph is replayed."""
        self._stream.wait_stream(torch.xpu.current_stream())
        with torch.xpu.stream(self._stream):
            run()
        graph = torch.xpu.XPUGraph()
        with torch.xpu.graph(graph, pool=self._pool, stream=self._stream):
            result = run()

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()

    @cached_property
    def _stream(self) -> torch.xpu.Stream:
        return torch.xpu.Stream()

    @cached_property
    def _pool(self) -> Any:
        return torch.xpu.graph_pool_handle()
