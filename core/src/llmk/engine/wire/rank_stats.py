"""What a rank measures of itself."""

from __future__ import annotations

import msgspec


class RankStats(msgspec.Struct, kw_only=True):
    """One rank of an engine's, since it started. ``node`` is empty where it is on the engine's machine.

    ``step_seconds`` are those in which it had a step to carry out, waiting for other ranks included;
    ``processor_seconds``, those of its process on all processors.
    """

    rank: int
    node: str = ""
    steps: int = 0
    step_seconds: float = 0.0
    processor_seconds: float = 0.0
    resident_bytes: int = 0
