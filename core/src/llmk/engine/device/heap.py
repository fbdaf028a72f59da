"""Memory that the C library keeps of what was freed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def find_trim() -> Callable[[], object] | None:
    """The C library's function that returns free pages to the system; ``None`` where it has none: glibc does."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return lambda: trim(0)
