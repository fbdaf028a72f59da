"""Leases of devices that several engines on one machine share: a locked file for each.

A lock belongs to an open file, which a rank's process inherits. So a device is free again once both have ended, the
engine that leased it and the rank that used it, no matter how; nothing is left that somebody must remove.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

LOOK_SECONDS = 0.05
"""Between two looks for free devices."""


class Leases:
    """The leases of one engine on some of ``devices``, which are named in the order of how close they are."""

    def __init__(self, folder: str, devices: Sequence[str]) -> None:
        self._folder = Path(folder or Path(tempfile.gettempdir()) / f"llmk-lagoon-{os.getuid()}")
        self._devices = list(devices)
        self._held: dict[str, int] = {}
        """The open, locked file of each leased device."""

    def take(self, count: int, seconds: float) -> list[str]:
        """Leases ``count`` devices, the closest of those that are free, and returns them in their order. Returns
        an empty list if there are not that many: then nothing is leased. Waits up to ``seconds`` until there are."""
        self._folder.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + seconds
        while count <= len(self._devices):
            with self._alone():
                free = self._lock_free()
                chosen = closest(list(free), count)
                for index, file in free.items():
                    if index in chosen:
                        self._held[self._devices[index]] = file
                    else:
                        os.close(file)
            if chosen or time.monotonic() >= until:
                return [self._devices[index] for index in chosen]
            time.sleep(LOOK_SECONDS)
        return []

    def file(self, device: str) -> int:
        """What a process inherits to keep the lease for as long as it runs."""
        return self._held[device]

    def give_back(self) -> None:
        """Ends this engine's part of the leases."""
        while self._held:
            os.close(self._held.popitem()[1])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One engine at a time looks for free devices, so that none sees locks which another one holds for a look."""
        file = os.open(self._folder / "looking", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _lock_free(self) -> dict[int, int]:
        """Locks all devices that are free; the open files by the devices' numbers."""
        free = {}
        for index, device in enumerate(self._devices):
            file = os.open(self._folder / f"device-{quote(device, safe='')}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free[index] = file
            except BlockingIOError:
                os.close(file)
        return free


def closest(free: Sequence[int], count: int) -> list[int]:
    """Of ``free`` numbers, ascending, the ``count`` that span the least; the first of several such. Empty if there are
    not that many."""
    runs = [list(free[at : at + count]) for at in range(len(free) - count + 1)]
    return min(runs, key=lambda run: run[-1] - run[0], default=[])
