"""torch's device ``nova``: loading the library registers it, and this module is what torch calls ``torch.nova``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch.utils import backend_registration

_COUNTED = ("waits", "fallbacks", "launches")


def _load() -> None:
    found = find_spec("llmk_nova._C")
    if found is None or found.origin is None:
        raise ImportError("llmk_nova was installed without its library llmk_nova/_C; build it with `pip wheel .`")
    torch.ops.load_library(found.origin)
    backend_registration.rename_privateuse1_backend("nova")
    torch._register_device_module("nova", sys.modules[__name__])
    backend_registration.generate_methods_for_privateuse1_backend()


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether one was made the current device, or gave memory; none is, before."""
    return bool(torch.ops.nova.is_initialized())


def device_count() -> int:
    """How many devices ``NOVA_VISIBLE_DEVICES`` shows."""
    return int(torch.ops.nova.device_count())


def current_device() -> int:
    """The index of the current device of this thread."""
    return torch.accelerator.current_device_index()


def set_device(device: torch.device | str | int) -> None:
    """Makes ``device`` the current one of this thread."""
    torch.accelerator.set_device_index(device)


def synchronize(device: torch.device | str | int | None = None) -> None:
    """Waits until what was issued to ``device`` has run."""
    torch.accelerator.synchronize(device)


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices."""
    torch.ops.nova.manual_seed(seed)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast`` may choose."""
    return [torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return False


def counted() -> Mapping[str, Mapping[str, int]]:
    """What happened in this process since :func:`reset_counts`, and how often.

    ``waits``: what made the host wait, by cause (``"copy to host"``, ``"copy from host"``, ``"item"``, ``"event"``,
    ``"stream"``, ``"device"``, or an op whose result has a shape that the host must know); ``fallbacks``: ops that the
    device has no kernel for, which ran on copies on the host; ``launches``: ops that ran on the device.
    """
    return {name: dict(torch.ops.nova.counted(kind)) for kind, name in enumerate(_COUNTED)}


def reset_counts() -> None:
    """Begins to count anew."""
    torch.ops.nova.reset_counts()


_load()
