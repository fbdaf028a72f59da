"""HIP graphs: a step's launches, captured once and replayed as one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from llmk.reference.accelerator import map_tensors


class HIPGraphs:
    """Captures on a stream of its own, into one pool of memory that all graphs share: they must be replayed one at a
    time. Nothing else may be launched on the device during a capture."""

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run`` after running it once, which compiles kernels and makes the libraries' workspaces: a capture
        allows neither. The replay returns what ``run`` returned while it was captured, at fixed addresses, valid until
        any graph is replayed."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate during the capture, which does not affect it.
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = run()
        except BaseException:
            # The host's allocator goes on recording to the pool, too, and can't be stopped: no graph uses it again.
            _end(self.__dict__.pop("_pool"))
            raise
        # The pool may use the result's memory for other graphs, or all graphs would hold as much as their results.
        result = map_tensors(result, _without_owner)

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()


def _end(pool: Any) -> None:
    """Ends what torch leaves started where a capture was invalidated, as by a step that waits for the device: all
    further captures would fail, and so would random numbers."""
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # a capture that ended in order has ended this, too
        torch._C._cuda_endAllocateToPool(device, pool)
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())


def _without_owner(tensor: Tensor) -> Tensor:
    """The same tensor, without keeping its memory from being used again."""
    if not tensor.numel():
        return tensor
    storage = tensor.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
