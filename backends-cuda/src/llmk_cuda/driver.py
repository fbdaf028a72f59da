"""Calls of NVIDIA's driver. Imports no torch."""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"


def load_driver() -> ctypes.CDLL:
    """The driver's library. Raises OSError where there is none."""
    return ctypes.CDLL(LIBRARY)


def call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Calls a function. Raises RuntimeError where it fails."""
    if code := getattr(driver, name)(*arguments):
        raise RuntimeError(f"{name}: CUDA's error {code}")
