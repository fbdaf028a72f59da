"""What plugins say about configuration: defaults in the early phase, problems in the late one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Default:
    """A plugin's default for the value at ``path`` (``"cache.block_size"``), and why. Anything the user sets wins over
    it."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the final configuration that can't work here: where, what, and how to mend it."""

    path: str
    message: str
    fix: str = ""
