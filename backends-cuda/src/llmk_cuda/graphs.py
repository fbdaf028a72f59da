"""CUDA graphs: a step's launches, captured once and replayed as one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from llmk.reference.accelerator import map_tensors


class CUDAGraphs:
    """Captures on a side stream, into one pool of memory that all graphs share.

    Graphs of one pool reuse each other's memory, so they must be replayed one at a time, and the largest is best
    captured first. Nothing else may be launched on the device during a capture.
    """

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run`` after running it once, which compiles kernels and creates library handles and workspaces: a
        capture allows neither. The replay returns what ``run`` returned while it was captured: a tensor, or a tuple,
        list or dataclass of such.

        The tensors' addresses are fixed, and their contents stay valid until any graph is replayed: their memory is the
        pool's again, or all graphs together would hold as much as their results. ``run`` must not synchronize with the
        device, and must read its inputs from the same tensors each time.
        """
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
        result = map_tensors(result, _without_owner)

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """In a capture, two branches of the graph: ``second`` runs on another stream. The allocator reuses a block on
        the stream that allocated it alone, and each branch starts after all that was issued before it, so no branch
        writes to memory that the other still reads. Outside of a capture, and within a branch, one after the other."""
        main = torch.cuda.current_stream()
        if main != self._stream:
            return first(), second()
        self._branch.wait_stream(main)
        try:
            with torch.cuda.stream(self._branch):
                other = second()
            one = first()
        finally:
            main.wait_stream(self._branch)  # a capture with a branch that does not join can't end, and hides the error
        return one, other

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    @cached_property
    def _branch(self) -> torch.cuda.Stream:
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


class _Memory:
    """Bytes of a device by their address, in the form that tensors are made of."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def _without_owner(tensor: Tensor) -> Tensor:
    """The same tensor, without keeping its memory from being used again."""
    if not tensor.is_cuda or not tensor.numel():
        return tensor
    size = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = torch.as_tensor(_Memory(tensor.data_ptr(), size * tensor.element_size()), device=tensor.device)
    return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
