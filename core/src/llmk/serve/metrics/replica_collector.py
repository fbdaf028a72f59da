"""Metrics of each replica, and of what chooses between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmk.engine.processes.replica import Replica
from llmk.engine.processes.replicas import Replicas

_GAUGES: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
    ("replica_up", "1 if it gets requests, 0 while it is down, slow or draining.", lambda one: one.status == "up"),
    ("replica_requests_running", "Requests that are running in the replica.", lambda one: one.stats.running),
    ("replica_sequences", "Sequences that it was given and that have not ended.", lambda one: len(one.placed)),
    ("replica_tokens_to_compute", "Tokens of these that it has still to compute, as foreseen.", lambda one: one.load),
    ("replica_cached_blocks", "Blocks that it is known to have cached.", lambda one: len(one.blocks.stored)),
    ("replica_kv_cache_blocks_used", "Blocks that running requests hold.", lambda one: one.stats.used_blocks),
    ("replica_step_seconds", "Mean time of its last steps.", lambda one: one.pace),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
    ("replica_sequences_given", "Sequences that it was given.", lambda one: one.given),
    ("replica_sequences_moved", "Sequences that left it and went on elsewhere.", lambda one: one.moved),
    ("replica_prefix_cache_queries", "Prompt tokens looked up there.", lambda one: one.stats.prefix_queried_tokens),
    ("replica_prefix_cache_hits", "Prompt tokens found there.", lambda one: one.stats.prefix_hit_tokens),
    ("replica_generation_tokens", "Tokens generated.", lambda one: one.stats.generated_tokens),
    ("replica_restarts", "Times that its engine was replaced.", lambda one: one.stats.restarts),
)


class ReplicaCollector(Collector):
    """Collects what is known of replicas when metrics are read. The totals are the metrics of one engine."""

    def __init__(self, replicas: Replicas, model_name: str) -> None:
        self._replicas = replicas
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        """One metric family for each number, with a sample for each replica."""
        labels, members = ["model_name", "replica"], self._replicas.members
        for make, numbers in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, read in numbers:
                family = make(f"llmk_{name}", text, labels=labels)
                for one in members:
                    family.add_metric([self._model_name, str(one.number)], read(one))
                yield family
        text = "Times that the router failed and was replaced by the built-in choice."
        failures = CounterMetricFamily("llmk_router_failures", text, labels=["model_name"])
        failures.add_metric([self._model_name], self._replicas.router.failures)
        yield failures
