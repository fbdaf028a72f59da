"""Initialises a GPU through NVIDIA's driver alone, without torch: the part of a device's setup that takes longest."""

from __future__ import annotations

import ctypes
import os

from llmk_cuda.driver import call, load_driver
from llmk_cuda.visible import number_by_bus


def early_setup(index: int) -> None:
    """Creates and retains the primary context of device ``index`` (CUDA's numbering), which torch then uses too.

    Raises:
        OSError: where there is no driver.
        RuntimeError: when a call of the driver fails.
    """
    number_by_bus()
    # As torch does when it initialises CUDA itself. Newer drivers default to it.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    driver = load_driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call(driver, "cuInit", 0)
    call(driver, "cuDeviceGet", ctypes.byref(device), index)
    call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
