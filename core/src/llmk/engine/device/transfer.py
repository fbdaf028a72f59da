"""Small tensors between the host and a device, without waiting for it.

They pass through pinned memory where the device has it: from and to pageable memory, copies wait for what was issued
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


@cache
def has_pinned_memory(device: torch.device) -> bool:
    """Whether copies to and from ``device`` can run asynchronously to the host, with events that pass when they are
    done."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != device.type:
        return False
    try:
        return torch.empty(1, pin_memory=True).is_pinned()
    except RuntimeError:
        return False


def to_device(values: Sequence[object], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor of ``values`` on ``device``, for what is issued from now on."""
    return torch.tensor(values, dtype=dtype, pin_memory=has_pinned_memory(device)).to(device, non_blocking=True)


def bits_to_device(bits: bytearray, rows: int, device: torch.device) -> Tensor:
    """Packed masks as int32 ``[rows, words]`` on ``device``."""
    words = torch.frombuffer(bits, dtype=torch.int32).view(rows, -1)
    return (words.pin_memory() if has_pinned_memory(device) else words).to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host, which is complete once an :func:`event` made after it has come; where there are none, a copy
    where ``tensor`` is, and reading waits. A recorded step writes ``tensor`` again when it is next replayed."""
    if not has_pinned_memory(tensor.device):
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def event(device: torch.device) -> torch.Event | None:
    """Comes when all that was issued to ``device`` so far has run; ``None`` where reading a tensor is what waits."""
    if not has_pinned_memory(device):
        return None
    made = torch.Event(device)
    made.record()
    return made
