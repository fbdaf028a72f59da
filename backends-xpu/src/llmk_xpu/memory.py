"""A GPU's memory, as torch and the driver say it."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import torch

from llmk.reference.accelerator import AcceleratorMemory

logger = logging.getLogger(__name__)


class XPUMemory(AcceleratorMemory):
    """The current device's memory.

    Drivers of integrated GPUs, and those under Windows' Linux, don't say what is free: then it is what torch has not
    reserved of the total, and other processes' memory counts as free. Others say that all is free.
    """

    def total(self) -> int:
        """Total bytes, without those that the driver reserves."""
        if not self._says_free:
            return int(self._properties().total_memory)
        return super().total()

    def available(self) -> int:
        """Bytes that can be allocated now.

        torch's allocator gives its unused memory back first, so that it counts as free. This waits for the device: it
        is meant for startup, not for a step.
        """
        torch.accelerator.empty_cache()
        rest = self.total() - torch.accelerator.memory_reserved()
        return min(rest, torch.accelerator.get_memory_info()[0]) if self._says_free else rest

    @cached_property
    def _says_free(self) -> bool:
        try:
            torch.accelerator.get_memory_info()
        except RuntimeError as error:
            logger.warning(
                "this driver does not say how much memory is free (torch.xpu.mem_get_info: %s); what other processes"
                " use is counted as free, so lower cache.memory_share if there are any",
                str(error).partition(".")[0],
            )
            return False
        return True

    def _properties(self) -> Any:
        device = torch.accelerator.current_accelerator()
        return torch.get_device_module(device).get_device_properties(torch.accelerator.current_device_index())
