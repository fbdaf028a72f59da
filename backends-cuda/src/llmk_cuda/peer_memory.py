"""Memory of the GPUs of one host, which the processes that own them map into each other.

It is the driver's (``cuIpcGetMemHandle``), as a plain allocation: no part of torch's pool, and no multicast object, of
which a host has few. Kernels get addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmk_cuda.driver import call, load_driver

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Differs between hosts, and is the same in all containers of one."""
_UNIT = 2 << 20
"""Bytes that the driver maps at a time: with less, peers would see what is next to it."""
_MAP_PEERS = 1
"""``CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS``."""
_LINKS = {2: "can't read and write each other's memory", 3: "have no link with atomics, such as NVLink"}
"""What is wrong where a ``CUdevice_P2PAttribute`` is 0."""
_TEXT_BYTES = 64


class _Handle(ctypes.Structure):
    """``CUipcMemHandle``."""

    _fields_ = [("data", ctypes.c_byte * 64)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's GPU is: the host, and the address on its PCI bus."""

    host: str
    bus: str


class PeerMemory:
    """Memory on the GPU of each rank. Its methods are for all ranks, one after the other, and raise OSError or
    RuntimeError with the reason why a rank has none."""

    def place(self) -> Place:
        """Where this process's current GPU is."""
        self._driver = load_driver()
        self._device, bus = ctypes.c_int(), ctypes.create_string_buffer(_TEXT_BYTES)
        call(self._driver, "cuCtxGetDevice", ctypes.byref(self._device))
        call(self._driver, "cuDeviceGetPCIBusId", bus, _TEXT_BYTES, self._device)
        return Place(_BOOT.read_text().strip(), bus.value.decode())

    def check(self, places: Sequence[Place]) -> None:
        """Whether this rank's GPU can map the memory of all others."""
        if len({place.host for place in places}) > 1:
            raise RuntimeError("the ranks are on several hosts")
        if len(set(places)) < len(places):
            raise RuntimeError("several ranks share a GPU")
        value = ctypes.c_int()
        for place in places:
            peer = ctypes.c_int()
            call(self._driver, "cuDeviceGetByPCIBusId", ctypes.byref(peer), place.bus.encode())
            for attribute, problem in _LINKS.items():
                if peer.value == self._device.value:
                    continue
                call(self._driver, "cuDeviceGetP2PAttribute", ctypes.byref(value), attribute, self._device, peer)
                if not value.value:
                    raise RuntimeError(f"GPUs {self._device.value} and {peer.value} {problem}")

    def allocate(self, size: int) -> bytes:
        """Allocates ``size`` bytes of zeros on this rank's GPU; returns what others map them by."""
        self._own, handle, whole = ctypes.c_uint64(), _Handle(), ctypes.c_size_t(-(-size // _UNIT) * _UNIT)
        call(self._driver, "cuMemAlloc_v2", ctypes.byref(self._own), whole)
        call(self._driver, "cuMemsetD8_v2", self._own, ctypes.c_ubyte(0), whole)
        call(self._driver, "cuCtxSynchronize")
        call(self._driver, "cuIpcGetMemHandle", ctypes.byref(handle), self._own)
        return bytes(handle)

    def map(self, handles: Sequence[bytes], rank: int) -> tuple[int, ...]:
        """The addresses of all ranks' memory on this rank's GPU, by rank. It stays mapped until the process ends."""
        return tuple(self._own.value if peer == rank else self._mapped(given) for peer, given in enumerate(handles))

    def _mapped(self, given: bytes) -> int:
        address = ctypes.c_uint64()
        call(self._driver, "cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(given), _MAP_PEERS)
        return address.value
