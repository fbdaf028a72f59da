"""Examples of what is sent to InfluxDB for the conformance kit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from llmk.api import StatLoggerContext, StatsSnapshot
from llmk_testing.stat_examples import Runs, StatExamples
from llmk_testing.stat_receivers import posts

HEADERS = "authorization: Token heron==\ncontent-type: text/plain; charset=utf-8\n"


def plain(text: str) -> str:
    """A text without what the protocol has no place for."""
    for space in "\n\r\t":
        text = text.replace(space, " ")
    return text.replace("\\", "/")


def sent(context: StatLoggerContext, runs: Runs) -> Mapping[str, bytes]:
    """All requests, one behind the other: where they are sent, then some 5,000 lines at most."""
    org = context.options.get("influx_org", "llmk").replace("&", "%26")
    bucket = context.options.get("influx_bucket", "llmk").replace(" ", "+")
    text = ""
    for snapshot in (each for run in runs for each in run):
        lines = lines_of(context, snapshot)
        for start in range(0, len(lines), 5000):
            some = "".join(lines[start : start + 5000])
            text += f"POST /api/v2/write?org={org}&bucket={bucket}&precision=us\n{HEADERS}{some}\n"
    return {"posts": text.encode("utf-8", "replace")}


def lines_of(context: StatLoggerContext, snapshot: StatsSnapshot) -> list[str]:
    """A line for each value that is a number."""
    lines = []
    for stat in snapshot.stats:
        if math.isfinite(stat.value):
            series = plain(stat.name).replace(",", "\\,").replace(" ", "\\ ")
            labels = {"model": context.model_name, **stat.labels}
            tags = {}
            for pair in labels.items():
                name, value = (plain(each).replace(",", "\\,").replace(" ", "\\ ").replace("=", "\\=") for each in pair)
                tags[name] = value
            for name in sorted(tags):
                if name and tags[name]:
                    series += f",{name}={tags[name]}"
            lines.append(f"{series} value={float(stat.value)} {round(snapshot.time * 1_000_000)}\n")
    return lines


INFLUX = StatExamples(
    sections=({}, {"influx_org": "R&D", "influx_bucket": "tokens a day"}),
    oracle=sent,
    receiver=posts("influx_url"),
    environment={"INFLUX_TOKEN": "heron=="},
)
