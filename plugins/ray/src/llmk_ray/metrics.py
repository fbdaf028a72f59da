"""Metrics of several servers as one: totals under the names that one server has, and each server's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of the text exposition format."""
_PREFIX = "llmk_"
_MEANS = {
    "gauge": ("_perc", "_per_step", "_step_seconds"),
    "counter": ("_per_device",),
}
"""By type, endings of what has a mean, and no sum."""
_LARGEST = ("_up", "_largest_relative_error")


class _Collected:
    """Gives the registry what was merged."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """All."""
        return self._families


def merged(texts: Mapping[str, str], missing: int = 0) -> bytes:
    """The text exposition of all servers, from those of each, by its id. ``missing`` did not answer.

    Totals are sums, but means of shares and times of a step, and the largest of states. What is of one server has the
    prefix ``llmk_server_`` in place of ``llmk_``, and the label ``server``.
    """
    totals: dict[str, Metric] = {}
    own: dict[str, Metric] = {}
    values: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
    for server, text in texts.items():
        for family in text_string_to_metric_families(text):
            totals.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            name = _own(family.name)
            mine = own.setdefault(name, Metric(name, family.documentation, family.type))
            for sample in family.samples:
                mine.add_sample(_own(sample.name), {**sample.labels, "server": server}, sample.value)
                values[family.name, sample.name, tuple(sorted(sample.labels.items()))].append(sample.value)
    for (name, sample_name, labels), found in values.items():
        totals[name].add_sample(sample_name, dict(labels), _total(totals[name], found))
    counts = (
        GaugeMetricFamily("llmk_servers", "Servers whose metrics these are.", len(texts)),
        GaugeMetricFamily("llmk_servers_silent", "Servers that did not answer in time.", missing),
    )
    registry = CollectorRegistry()
    registry.register(_Collected([*counts, *totals.values(), *own.values()]))
    return generate_latest(registry)


def _own(name: str) -> str:
    return f"{_PREFIX}server_{name.removeprefix(_PREFIX)}"


def _total(family: Metric, values: list[float]) -> float:
    if family.name.endswith(_MEANS.get(family.type, ())):
        return sum(values) / len(values)
    return max(values) if family.name.endswith(_LARGEST) else sum(values)
