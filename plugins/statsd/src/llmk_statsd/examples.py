"""What the conformance kit tries the logger on: sections, and the lines that a daemon gets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from llmk.api import Stat, StatLoggerContext
from llmk_testing.stat_examples import Runs, StatExamples
from llmk_testing.stat_receivers import datagrams


def sent(context: StatLoggerContext, runs: Runs) -> Mapping[str, bytes]:
    """The lines of all snapshots; each logger counts from 0."""
    text = ""
    for run in runs:
        before: dict[object, float] = {}
        for stat in (stat for snapshot in run for stat in snapshot.stats):
            if math.isfinite(stat.value) and not stat.name.endswith("_bucket"):
                text += "".join(f"{line}\n" for line in _lines(context, stat, before))
    return {"datagrams": text.encode()}


def _lines(context: StatLoggerContext, stat: Stat, before: dict[object, float]) -> Iterator[str]:
    """A gauge, which is set to 0 first where a sign would mean a change; or by how much a counter grew."""
    parts = [_plain(label) + ":" + _plain(text) for label, text in stat.labels.items()]
    name, tags = _plain(stat.name.removeprefix("llmk_")), "|#" + ",".join(parts) if parts else ""
    if context.options["prefix"]:
        name = context.options["prefix"] + "." + name
    if not context.options["tags"]:
        name, tags = ".".join([name, *map(_plain, stat.labels.values())]), ""
    value = f"{stat.value:f}".rstrip("0").removesuffix(".")
    if stat.kind == "gauge":
        if stat.value < 0:
            yield f"{name}:0|g{tags}"
        yield f"{name}:{value}|g{tags}"
        return
    last = before.get((name, tags), 0.0)
    before[name, tags] = stat.value
    grown = stat.value - last if stat.value >= last else stat.value
    if grown > 0:
        yield f"{name}:{grown:f}".rstrip("0").removesuffix(".") + f"|c{tags}"


def _plain(text: str) -> str:
    """One underscore for each run of characters that are neither letters, numbers nor dashes."""
    found = "".join(each if each.isalnum() or each in "_-" else "\0" for each in text.strip("/"))
    while "\0\0" in found:
        found = found.replace("\0\0", "\0")
    return found.replace("\0", "_")


STATSD = StatExamples(
    sections=({}, {"tags": True, "prefix": ""}, {"max_bytes": 64}),
    oracle=sent,
    receiver=datagrams("host", "port"),
)
