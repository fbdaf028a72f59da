"""A stat logger: a line of JSON for each snapshot, in files of bounded size.

A line has the gauges as they are, and by how much each counter grew since the line before. Numbers that JSON lacks are
texts (``"nan"``, ``"inf"``, ``"-inf"``). A file that would grow beyond its limit is renamed to ``FILE.1``, this one to
``FILE.2``, and so on; the oldest is removed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from llmk.api import Stat, StatLogger, StatLoggerContext, StatsSnapshot
from llmk_meadow.options import read

MOST_SERIES = 20_000
"""How many counters are remembered; of more, those that were seen last."""


def title(stat: Stat) -> str:
    """A stat's name and labels, in one order."""
    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(stat.labels.items()))
    return f"{stat.name}{{{labels}}}" if labels else stat.name


def number(value: float) -> float | str:
    """A number of JSON, or its text."""
    return value if math.isfinite(value) else str(value)


class Ledger(StatLogger):
    """Writes to one file, which is open from the start."""

    def __init__(self, context: StatLoggerContext) -> None:
        options = read(context.options)
        self._path = Path(options.ledger)
        self._most_bytes, self._num_files = options.ledger_bytes, options.ledger_files
        self._model = context.model_name
        self._counters: dict[str, float] = {}
        self._file = self._path.open("ab")

    def record(self, snapshot: StatsSnapshot) -> None:
        """One line."""
        gauges: dict[str, float | str] = {}
        grown: dict[str, float | str] = {}
        for stat in snapshot.stats:
            if stat.kind == "gauge":
                gauges[title(stat)] = number(stat.value)
            else:
                grown[title(stat)] = number(self._growth(title(stat), stat.value))
        for series in list(self._counters)[: max(len(self._counters) - MOST_SERIES, 0)]:
            del self._counters[series]
        line = {"time": snapshot.time, "model": self._model, "gauges": gauges, "grown": grown}
        self._write(json.dumps(line).encode() + b"\n")

    def _growth(self, series: str, value: float) -> float:
        """A counter that became less started again at 0."""
        before = self._counters.pop(series, 0.0)
        self._counters[series] = value
        return value - before if value >= before else value

    def _write(self, line: bytes) -> None:
        size = self._file.tell()
        if size and size + len(line) > self._most_bytes:
            self._rotate()
        self._file.write(line)
        self._file.flush()

    def _rotate(self) -> None:
        self._file.close()
        names = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, self._num_files))]
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)
        self._file = self._path.open("wb")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
