"""What a server's processes hold: memory, open files, threads. Read from /proc; for Linux alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

PROC = Path("/proc")
_FIELDS = {"Rss": "resident", "Pss": "pss", "Pss_Anon": "anonymous", "Pss_Shmem": "shared"}


@dataclass(slots=True)
class Held:
    """What processes hold together. ``pss`` is the proportional set size in bytes: what several of them share counts
    once. ``anonymous`` and ``shared`` are parts of it: heaps, and shared memory; the rest are pages of files."""

    processes: int = 0
    resident: int = 0
    pss: int = 0
    anonymous: int = 0
    shared: int = 0
    files: int = 0
    threads: int = 0

    def add(self, other: Held) -> None:
        """Adds what others hold."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        mib = (f"{size / 2**20:,.1f} MiB" for size in (self.pss, self.anonymous))
        return "{} ({} of it anonymous)".format(*mib) + (
            f" in {self.processes} processes, {self.threads} threads, {self.files} open files"
        )


def held(pid: int) -> Held:
    """What a process and all its descendants hold. One that ends while it is looked at counts for nothing."""
    total = Held()
    for each in descendants(pid):
        try:
            total.add(_held_by(each))
        except (OSError, psutil.NoSuchProcess):
            continue
    return total


def resident(pid: int) -> int:
    """Bytes that a process and its descendants have in memory, each counted in full: cheap to ask, unlike
    :func:`held`, which holds a large process up for some milliseconds."""
    total = 0
    for each in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += psutil.Process(each).memory_info().rss
    return total


def descendants(pid: int) -> Iterator[int]:
    """A process, its children, and theirs."""
    yield pid
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    yield from (child.pid for child in children)


def _held_by(pid: int) -> Held:
    found = Held(processes=1)
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            setattr(found, _FIELDS[name], int(rest.split()[0]) << 10)
    found.files = len(os.listdir(PROC / str(pid) / "fd"))
    found.threads = len(os.listdir(PROC / str(pid) / "task"))
    return found
