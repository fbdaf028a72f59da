"""Examples for the conformance kit: sections of the configuration, and what InfluxDB gets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import quote_plus

from llmk.api import Stat, StatLoggerContext
from llmk_testing.stat_examples import Runs, StatExamples
from llmk_testing.stat_receivers import posts


def line(model: str, stat: Stat, milliseconds: int) -> str:
    """A stat in the line protocol."""
    text = stat.name
    tags = dict(stat.labels)
    tags.setdefault("model_name", model)
    for name in sorted(tags):
        value = tags[name]
        while value.endswith("\\"):
            value = value[:-1]
        for odd, escaped in ((",", "\\,"), ("=", "\\="), (" ", "\\ "), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            value = value.replace(odd, escaped)
        if value:
            text += f",{name}={value}"
    return f"{text} {stat.kind}={float(stat.value)} {milliseconds}\n"


def written(context: StatLoggerContext, runs: Runs) -> Mapping[str, bytes]:
    """All requests so far."""
    database = quote_plus(context.options.get("influx_database", "llmk"))
    most, token = context.options.get("influx_batch", 5000), context.options.get("influx_token")
    headers = f"authorization: Token {token}\n" if token else ""
    headers += "content-type: text/plain; charset=utf-8\n"
    sent = b""
    for run in runs:
        for snapshot in run:
            finite = [stat for stat in snapshot.stats if not math.isnan(stat.value) and not math.isinf(stat.value)]
            for first in range(0, len(finite), most):
                some = finite[first : first + most]
                body = "".join(line(context.model_name, stat, round(snapshot.time * 1000)) for stat in some)
                sent += f"POST /write?db={database}&precision=ms\n{headers}".encode()
                sent += body.encode(errors="backslashreplace") + b"\n"
    return {"posts": sent}


INFLUX = StatExamples(
    sections=(
        {},
        {"influx_database": "metrics of llmk", "influx_token": "a-b"},
        {"influx_batch": 3},
    ),
    oracle=written,
    receiver=posts("influx_url"),
)
