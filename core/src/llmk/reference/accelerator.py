"""A platform's device and memory by what torch has for every accelerator, for platforms to be made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


class AcceleratorDevice:
    """Devices of torch's type ``device_type``, one per worker; ``index_of`` is torch's number of the device of a local
    rank."""

    def __init__(self, device_type: str, index_of: Callable[[int], int]) -> None:
        self._type, self._index_of = device_type, index_of

    def torch_device(self, index: int) -> torch.device:
        """The device of local rank ``index``."""
        return torch.device(self._type, self._index_of(index))

    def setup(self, index: int, threads: int = 0) -> None:
        """Makes it the current device, and sets torch's compute threads on the host; 0: one, since the host does little
        but launch."""
        torch.accelerator.set_device_index(self.torch_device(index))
        torch.set_num_threads(threads or 1)

    def synchronize(self) -> None:
        """Waits for all streams of the current device."""
        torch.accelerator.synchronize()


class AcceleratorMemory:
    """The current device's memory."""

    def total(self) -> int:
        """Total bytes, without those that the driver reserves."""
        return torch.accelerator.get_memory_info()[1]

    def available(self) -> int:
        """Bytes that can be allocated now; other processes' memory is not available.

        torch's allocator gives its unused memory back first, so that it counts as free. This waits for the device: it
        is meant for startup, not for a step.
        """
        torch.accelerator.empty_cache()
        return torch.accelerator.get_memory_info()[0]

    def measure(self, run: Callable[[], None]) -> int | None:
        """The peak of torch's allocated tensors, without what its allocator keeps for reuse."""
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        run()
        torch.accelerator.synchronize()
        return torch.accelerator.max_memory_allocated() - before


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with each tensor changed: a tensor, or a tuple, list or dataclass of such; other values stay."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        each = [map_tensors(item, change) for item in value]
        return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: map_tensors(getattr(value, field.name), change) for field in fields(value)}
        )
    return value
