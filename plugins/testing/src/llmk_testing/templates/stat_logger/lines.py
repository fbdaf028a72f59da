"""Writes a line of JSON for every snapshot of the server's metrics."""

from __future__ import annotations

import json
import math

from llmk.api import StatLoggerContext, StatsSnapshot


class Lines:
    """Follows ``llmk.api.StatLogger``. It is called in its own thread, so it may block."""

    def __init__(self, context: StatLoggerContext) -> None:
        """An exception here stops the server's start, with its message."""
        self._model = context.model_name
        self._file = open(context.options["file"], "a", encoding="utf-8")  # noqa: SIM115, closed by close

    def record(self, snapshot: StatsSnapshot) -> None:
        """The metrics are those of ``/metrics``. NaN is skipped, because JSON has none; so are buckets of histograms,
        because they are too long."""
        stats = [
            {"name": stat.name, "labels": dict(stat.labels), "value": stat.value}
            for stat in snapshot.stats
            if math.isfinite(stat.value) and not stat.name.endswith("_bucket")
        ]
        line = json.dumps({"time": snapshot.time, "model": self._model, "stats": stats})
        print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Called at the end; a second call does nothing."""
        self._file.close()
