"""A line of JSON for every snapshot of the server's numbers."""

from __future__ import annotations

import json
import math

from llmk.api import StatLoggerContext, StatsSnapshot


class Lines:
    """Follows ``llmk.api.StatLogger``. It is called from a thread of its own, and may block."""

    def __init__(self, context: StatLoggerContext) -> None:
        """What is raised here ends the start of the server, with its reason."""
        self._model = context.model_name
        self._file = open(context.options["file"], "a", encoding="utf-8")  # noqa: SIM115, closed by close

    def record(self, snapshot: StatsSnapshot) -> None:
        """Numbers are those of ``/metrics``. JSON has no NaN, and buckets of histograms would be most of the line."""
        stats = [
            {"name": stat.name, **stat.labels, "value": stat.value}
            for stat in snapshot.stats
            if math.isfinite(stat.value) and not stat.name.endswith("_bucket")
        ]
        line = json.dumps({"time": snapshot.time, "model": self._model, "stats": stats})
        print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Called at the end; again it does nothing."""
        self._file.close()
