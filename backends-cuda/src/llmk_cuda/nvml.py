"""Reads the driver's and the devices' properties through NVIDIA's management library (NVML).

NVML creates no CUDA context, so it uses no device memory, and a process can still fork afterwards. Imports no torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmk.api import Host, Verdict, no

LIBRARY = "libnvidia-ml.so.1"

_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
)
"""Fallback paths of the library, if it is not in the loader's path."""

_TEXT_BYTES = 256


class NvmlFailed(Exception):
    """The driver can't be queried. ``verdict`` has the reason, for users."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("; ".join(map(str, verdict.reasons)))
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. ``capability`` is its compute capability, ``(9, 0)``."""

    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver, the newest CUDA that it serves (``(13, 0)``), and all GPUs in the order of the PCI bus."""

    version: str
    cuda: tuple[int, int]
    devices: tuple[Device, ...]


def read_driver(host: Host) -> Driver:
    """Queries the driver. Raises :class:`NvmlFailed`."""
    with _session(_load(host)) as call:
        cuda = ctypes.c_int()
        call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        count = ctypes.c_uint()
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return Driver(
            version=call.text("nvmlSystemGetDriverVersion"),
            cuda=(cuda.value // 1000, cuda.value % 1000 // 10),
            devices=tuple(_device(call, index) for index in range(count.value)),
        )


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Calls:
    """Calls the library's functions by name and turns their error codes into :class:`NvmlFailed`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            found = f"{name}: {self._library.nvmlErrorString(code).decode()} (error {code})"
            hint = "`nvidia-smi` should show the same error; load or reinstall NVIDIA's driver"
            raise NvmlFailed(no("driver_failed", wanted="a working NVIDIA driver", found=found, hint=hint))

    def text(self, name: str, *arguments: object) -> str:
        """The text that a function writes into a buffer."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self(name, *arguments, buffer, _TEXT_BYTES)
        return buffer.value.decode(errors="replace")


def _load(host: Host) -> ctypes.CDLL:
    places = [str(path) for folder in _FOLDERS if (path := host.path(folder) / LIBRARY).exists()]
    if host.root == Path("/"):
        places.insert(0, LIBRARY)
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    hint = "install NVIDIA's driver; a container must be run with its GPUs (docker run --gpus all)"
    raise NvmlFailed(no("no_driver", wanted=LIBRARY, found="not installed", hint=hint))


@contextmanager
def _session(library: ctypes.CDLL) -> Iterator[_Calls]:
    call = _Calls(library)
    call("nvmlInit_v2")
    try:
        yield call
    finally:
        library.nvmlShutdown()


def _device(call: _Calls, index: int) -> Device:
    handle, memory, major, minor = ctypes.c_void_p(), _Memory(), ctypes.c_int(), ctypes.c_int()
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    return Device(
        uuid=call.text("nvmlDeviceGetUUID", handle),
        name=call.text("nvmlDeviceGetName", handle),
        memory_bytes=memory.total,
        capability=(major.value, minor.value),
    )
