"""The CPUs of this process."""

from __future__ import annotations

import os


def usable() -> int:
    """How many CPUs this process may run on, which may be fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every operating system binds processes to CPUs
        return os.cpu_count() or 1
