"""CUDA graphs: a step's launches, recorded once and replayed as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch


class CUDAGraphs:
    """Captures on a side stream, into one pool of memory that all graphs share.

    Graphs of one pool reuse each other's intermediate memory, so they must be replayed one at a time, and the largest
    is best captured first. Nothing else may be issued to the device while one is captured.
    """

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run`` after running it once, which compiles kernels and makes libraries' handles and
        workspaces: a capture allows neither. The replay returns what ``run`` returned while it was captured.

        The tensors in it belong to the graph: they keep their place, and hold until that graph is replayed again.
        ``run`` must not wait for the device, and must have the same effect each time on the tensors that it reads.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a Python program may allocate meanwhile, which is no concern of this capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = run()

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
