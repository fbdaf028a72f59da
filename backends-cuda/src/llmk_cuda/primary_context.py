"""The device's own beginning, which takes most of a second, by NVIDIA's driver alone. Needs no torch."""

from __future__ import annotations

import ctypes
import os

from llmk_cuda.visible import number_by_bus

LIBRARY = "libcuda.so.1"


def begin(index: int) -> None:
    """Makes the primary context of device ``index``, by CUDA's numbers, and keeps it: it is the one that torch uses.

    Raises:
        OSError: where there is no driver.
        RuntimeError: where the driver can't.
    """
    number_by_bus()
    # As torch does where CUDA was not begun before. Later drivers do so by themselves.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    driver = ctypes.CDLL(LIBRARY)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), index)
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    if code := getattr(driver, name)(*arguments):
        raise RuntimeError(f"{name}: CUDA's error {code}")
