"""Messages of commands on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Prints a line on standard error. If that fails, as on a full disk, the command continues."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
