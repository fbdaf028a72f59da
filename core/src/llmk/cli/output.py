"""What commands say beside their output."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Prints a line on standard error. Where it can't be written, as on a full disk, the command goes on without."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
