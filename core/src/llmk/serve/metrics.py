"""Prometheus metrics, under the names that the field uses where it has one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmk.serve.stream import ChoiceDelta, Usage

if TYPE_CHECKING:
    from llmk.engine.frontend import AsyncLLM

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TOKENS = tuple(base * 10**power for power in range(5) for base in (1, 2, 5))

_GAUGES = (
    ("num_requests_running", "running", "Requests that the engine is working on."),
    ("num_requests_waiting", "waiting", "Requests that wait for the engine."),
    ("kv_cache_blocks_total", "total_blocks", "Blocks of the K/V cache."),
    ("kv_cache_blocks_used", "used_blocks", "Blocks of the K/V cache that running requests hold."),
    ("engine_up", "up", "1 if there is an engine, 0 while it is being started again."),
)
_COUNTERS = (
    ("prefix_cache_queries", "prefix_queried_tokens", "Prompt tokens looked up in the prefix cache."),
    ("prefix_cache_hits", "prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    ("num_preemptions", "preemptions", "Times that a request was put back for want of blocks."),
    ("request_timeouts", "timeouts", "Sequences that were not begun or done in time."),
    ("scheduling_policy_failures", "policy_failures", "Times that the scheduling policy failed and was replaced."),
    ("engine_steps", "steps", "Steps that the engine ran."),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens computed."),
    ("generation_tokens", "generated_tokens", "Tokens generated."),
    ("engine_restarts", "restarts", "Times that a dead engine was replaced."),
    ("sequences_retried", "retried", "Sequences that ran when the engine died and were given to the next one."),
)


class EngineCollector(Collector):
    """Reads the engine's own counts when they are asked for."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """One family for each count."""
        stats, label = self._engine.stats, [self._engine.model_name]
        for name, field, text in _GAUGES:
            gauge = GaugeMetricFamily(f"llmk:{name}", text, labels=["model_name"])
            gauge.add_metric(label, getattr(stats, field))
            yield gauge
        for name, field, text in _COUNTERS:
            counter = CounterMetricFamily(f"llmk:{name}", text, labels=["model_name"])
            counter.add_metric(label, getattr(stats, field))
            yield counter
        usage = GaugeMetricFamily(
            "llmk:kv_cache_usage_perc", "Share of the K/V cache in use, 0 to 1.", labels=["model_name"]
        )
        usage.add_metric(label, stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0)
        yield usage


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        self._model = engine.model_name
        self.http_requests = Counter(
            "llmk:http_requests", "Requests answered.", ["method", "path", "status"], registry=self._registry
        )
        self.http_in_flight = Gauge("llmk:http_requests_in_flight", "Requests being answered.", registry=self._registry)
        self._tasks = Gauge("llmk:frontend_tasks", "Tasks of the server's event loop.", registry=self._registry)
        self._first = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "Between tokens of one choice.", SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._generated = self._histogram("request_generation_tokens", "Tokens generated for a request.", TOKENS)
        self._success = Counter(
            "llmk:request_success", "Choices that ended.", ["model_name", "finished_reason"], registry=self._registry
        )

    def render(self) -> bytes:
        """The text exposition format. To be called in the server's event loop."""
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self._registry)

    async def observe(
        self, deltas: AsyncGenerator[ChoiceDelta, None], usage: Usage
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """Passes ``deltas`` on and takes their times. What does not reach its end is counted as aborted."""
        arrived = time.monotonic()
        last: dict[int, float] = {}
        reason = "abort"
        try:
            async with aclosing(deltas) as items:
                async for delta in items:
                    self._tick(delta, last, arrived)
                    yield delta
            reason = ""
        finally:
            if reason:
                self._success.labels(self._model, reason).inc()
            else:
                self._whole.observe(time.monotonic() - arrived)
                self._prompt.observe(usage.prompt_tokens)
                self._generated.observe(usage.completion_tokens)

    def _tick(self, delta: ChoiceDelta, last: dict[int, float], arrived: float) -> None:
        now = time.monotonic()
        if delta.index in last:
            self._between.observe(now - last[delta.index])
        elif not last:
            self._first.observe(now - arrived)
        last[delta.index] = now
        if delta.finish_reason is not None:
            self._success.labels(self._model, delta.finish_reason).inc()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"llmk:{name}", text, ["model_name"], buckets=buckets, registry=self._registry)
        return family.labels(self._model)
