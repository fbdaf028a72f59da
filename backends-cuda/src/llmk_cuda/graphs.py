"""CUDA graphs: a step's launches, captured once and replayed as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch


class CUDAGraphs:
    """Captures on a side stream, into one pool of memory that all graphs share.

    Graphs of one pool reuse each other's intermediate memory, so they must be replayed one at a time, and the largest
    is best captured first. Nothing else may be launched on the device during a capture.
    """

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run`` after running it once, which compiles kernels and creates library handles and workspaces: a
        capture allows neither. The replay returns what ``run`` returned while it was captured.

        These tensors belong to the graph: their addresses are fixed, and their contents stay valid until the graph is
        replayed again. ``run`` must not synchronize with the device, and must read its inputs from the same tensors
        each time.
        """
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
            torch.cuda.synchronize()
            # Other threads may allocate during the capture, which does not affect it. ``torch.cuda.graph`` would empty
            # the allocator's cache too, which costs the steps that come after.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:
                graph.capture_end()

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()
