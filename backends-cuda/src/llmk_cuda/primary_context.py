"""Creates the device's primary context by NVIDIA's driver, without torch. This takes most of a second."""

from __future__ import annotations

import ctypes
import os

from llmk_cuda.visible import number_by_bus

LIBRARY = "libcuda.so.1"


def create(index: int) -> None:
    """Creates and retains the primary context of device ``index`` (CUDA's numbering), which torch uses later.

    Raises:
        OSError: there is no driver.
        RuntimeError: the driver can't create it.
    """
    number_by_bus()
    # As torch does if CUDA was not initialized before. Later drivers do it by default.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    driver = ctypes.CDLL(LIBRARY)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), index)
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    if code := getattr(driver, name)(*arguments):
        raise RuntimeError(f"{name}: CUDA's error {code}")
