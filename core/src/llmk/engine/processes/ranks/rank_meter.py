"""Measures a rank, in its process."""

from __future__ import annotations

import time

import psutil

from llmk.engine.wire.rank_stats import RankStats

REPORT_SECONDS = 1.0
"""Between two reports of a rank that is busy."""


class RankMeter:
    """What ``rank``, whose process this is, has done since it started."""

    def __init__(self, rank: int) -> None:
        self._process = psutil.Process()
        self._stats = RankStats(rank=rank)
        self._since = self._reported = time.monotonic()

    def start(self) -> None:
        """A step came while there was no other."""
        self._since = time.monotonic()

    def end(self) -> None:
        """A step ended; the next one, if there is any, started when it did."""
        self._stats.steps += 1
        now = time.monotonic()
        self._stats.step_seconds += now - self._since
        self._since = now

    def is_due(self) -> bool:
        """Whether the last report is old."""
        return time.monotonic() - self._reported >= REPORT_SECONDS

    def report(self) -> RankStats:
        """How things stand; the same object each time."""
        self._reported = time.monotonic()
        self._stats.processor_seconds = time.process_time()
        self._stats.resident_bytes = self._process.memory_info().rss
        return self._stats
