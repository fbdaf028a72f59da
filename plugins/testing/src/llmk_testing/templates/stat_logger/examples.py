"""Examples for the conformance kit: sections ``[plugin.acme]``, as users may write them, and what is in the files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from llmk.api import StatLoggerContext
from llmk_testing.stat_examples import Runs, StatExamples


def written(context: StatLoggerContext, runs: Runs) -> Mapping[str, bytes]:
    """The logger once more, by the plainest code: from all snapshots so far, the bytes of each file."""
    text = ""
    for snapshot in (each for run in runs for each in run):
        shown = [stat for stat in snapshot.stats if math.isfinite(stat.value) and not stat.name.endswith("_bucket")]
        stats = [{"name": stat.name, "labels": dict(stat.labels), "value": stat.value} for stat in shown]
        text += json.dumps({"time": snapshot.time, "model": context.model_name, "stats": stats}) + "\n"
    return {context.options["file"]: text.encode()}


# One that sends what it records has a receiver, too (llmk_testing.stat_receivers), which is then also away, refuses, or
# hangs; and, as its environment, the variables that it reads, such as that of a token.
LINES = StatExamples(sections=({}, {"file": "other.jsonl"}), oracle=written)
