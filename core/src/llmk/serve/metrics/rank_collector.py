"""Metrics of each rank, where a model is spread over several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from llmk.engine.async_llm import AsyncLLM
    from llmk.engine.wire.rank_stats import RankStats

_NUMBERS: tuple[tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str, str, str], ...] = (
    (CounterMetricFamily, "rank_steps", "steps", "Steps that the rank carried out since it started."),
    (
        CounterMetricFamily,
        "rank_step_seconds",
        "step_seconds",
        "Time in which it had a step, waiting for other ranks included.",
    ),
    (CounterMetricFamily, "rank_processor_seconds", "processor_seconds", "Processor time of its process."),
    (GaugeMetricFamily, "rank_resident_bytes", "resident_bytes", "Memory of its process."),
)


class RankCollector(Collector):
    """Collects what ranks said last of themselves when metrics are read, with the rank, its node and its replica."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """One metric family for each number, with a sample for each rank."""
        ranks = self._current()
        labels = ["model_name", "replica", "rank", "node"]
        for make, name, field, text in _NUMBERS if ranks else ():
            family = make(f"llmk_{name}", text, labels=labels)
            for (replica, rank), stats in ranks.items():
                at = [self._engine.model_name, str(replica), str(rank), stats.node]
                family.add_metric(at, getattr(stats, field))
            yield family

    def _current(self) -> dict[tuple[int, int], RankStats]:
        """Those of replicas that are still there."""
        replicas = self._engine.replicas
        if replicas is None:
            return dict(self._engine.ranks)
        there = {one.number for one in replicas.members}
        return {at: stats for at, stats in self._engine.ranks.items() if at[0] in there}
