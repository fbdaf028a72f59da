"""Prometheus metrics, with the names that other serving engines use, if there are any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmk.api import Stat, StatsSnapshot
from llmk.serve.generation.choice_deltas import ChoiceDelta
from llmk.serve.generation.output_rules import call_error
from llmk.serve.generation.request_record import RequestRecord
from llmk.serve.metrics.rank_collector import RankCollector
from llmk.serve.metrics.replica_collector import ReplicaCollector

if TYPE_CHECKING:
    from llmk.engine.async_llm import AsyncLLM
    from llmk.engine.text.output_processor import SequenceTimes
    from llmk.engine.wire.request import StepTimes

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
STEP_SECONDS = tuple(base / 10**power for power in (5, 4, 3, 2, 1, 0) for base in (1, 2, 5))
TOKENS = tuple(base * 10**power for power in range(5) for base in (1, 2, 5))
STEP_TOKENS = (1, *(8 << power for power in range(12)))
CHOICES = (1, 2, 5, 10, 20)
RENDER_SHARE = 0.05
"""The most of the event loop's time that rendering may take."""

_GAUGES = (
    ("num_requests_running", "running", "Requests that are running in the engine."),
    ("num_requests_waiting", "waiting", "Requests that wait for the engine."),
    ("kv_cache_blocks", "total_blocks", "Blocks of the K/V cache."),
    ("kv_cache_blocks_pinned", "pinned_blocks", "Blocks of the K/V cache that pinned prefixes hold."),
    ("kv_cache_blocks_used", "used_blocks", "Blocks of the K/V cache that running requests hold."),
    ("engine_up", "up", "1 if there is an engine, 0 while it is being restarted."),
)
_COUNTERS = (
    ("prefix_cache_queries", "prefix_queried_tokens", "Prompt tokens looked up in the prefix cache."),
    ("prefix_cache_hits", "prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    ("num_preemptions", "preemptions", "Preemptions of requests because of too few free blocks."),
    ("request_timeouts", "timeouts", "Sequences that were not started or finished in time."),
    ("broken_logits", "broken_logits", "Sequences that failed because of NaN or otherwise invalid logits."),
    ("scheduling_policy_failures", "policy_failures", "Times that the scheduling policy failed and was replaced."),
    ("speculator_failures", "speculator_failures", "Times that the speculator failed and was not called again."),
    ("engine_steps", "steps", "Steps that the engine ran."),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens computed."),
    ("generation_tokens", "generated_tokens", "Tokens generated."),
    ("estimated_flops_per_device", "flops", "Estimated floating-point operations of a device."),
    ("estimated_read_bytes_per_device", "read_bytes", "Estimated bytes that a device read from its memory."),
    ("estimated_write_bytes_per_device", "written_bytes", "Estimated bytes that a device wrote to its memory."),
    ("engine_restarts", "restarts", "Times that a dead engine was replaced."),
    (
        "sequences_retried",
        "retried",
        "Sequences that were running when the engine died and were resumed by the next one.",
    ),
)
_DRAFTS = (
    ("spec_decode_num_drafts", "Times that drafts of a request were verified in a step."),
    ("spec_decode_num_draft_tokens", "Drafted tokens that were verified."),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."),
)
_SHADOWS = (
    ("shadow_calls_compared", "compared", "Calls of a kernel that were compared with its shadow."),
    ("shadow_calls_diverged", "diverged", "Compared calls in which the two differ by more than rounding."),
    ("shadow_failures", "failures", "Shadows that raised an exception and are no longer run."),
    ("shadow_largest_relative_error", "largest", "The largest difference so far: relative 2-norm."),
)


class EngineCollector(Collector):
    """Collects the engine's statistics when metrics are read."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """One metric family for each statistic."""
        stats, label = self._engine.stats, [self._engine.model_name]
        for name, field, text in _GAUGES:
            gauge = GaugeMetricFamily(f"llmk_{name}", text, labels=["model_name"])
            gauge.add_metric(label, getattr(stats, field))
            yield gauge
        for name, field, text in _COUNTERS:
            counter = CounterMetricFamily(f"llmk_{name}", text, labels=["model_name"])
            counter.add_metric(label, getattr(stats, field))
            yield counter
        yield from self._shadows()
        yield from self._drafts()
        usage = GaugeMetricFamily(
            "llmk_kv_cache_usage_perc", "Share of the K/V cache in use, 0 to 1.", labels=["model_name"]
        )
        usage.add_metric(label, stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0)
        yield usage

    def _shadows(self) -> Iterator[Metric]:
        labels = ["model_name", "kind", "site", "kernel", "shadow"]
        for name, field, text in _SHADOWS if self._engine.stats.shadows else ():
            counts = field != "largest"
            family = (CounterMetricFamily if counts else GaugeMetricFamily)(f"llmk_{name}", text, labels=labels)
            for one in self._engine.stats.shadows:
                at = [self._engine.model_name, one.kind, one.site, one.kernel, one.shadow]
                family.add_metric(at, getattr(one, field))
            yield family

    def _drafts(self) -> Iterator[Metric]:
        """Only of engines that draft. The names of totals are those of other engines."""
        stats, label = self._engine.stats, [self._engine.model_name]
        if not stats.drafted:
            return
        totals = (stats.drafted[0], sum(stats.drafted), sum(stats.accepted))
        for (name, text), total in zip(_DRAFTS, totals, strict=True):
            counter = CounterMetricFamily(f"llmk_{name}", text, labels=["model_name"])
            counter.add_metric(label, total)
            yield counter
        for (name, text), counts in zip(_DRAFTS[1:], (stats.drafted, stats.accepted), strict=True):
            labels = ["model_name", "position"]
            family = CounterMetricFamily(f"llmk_{name}_per_pos", f"{text[:-1]}, by position.", labels=labels)
            for position, count in enumerate(counts):
                family.add_metric([*label, str(position)], count)
            yield family
        text = "Mean tokens that a request gets of a step which verifies drafts of it."
        mean = GaugeMetricFamily("llmk_spec_decode_tokens_per_step", text, labels=["model_name"])
        mean.add_metric(label, 1 + totals[2] / totals[0])
        yield mean


class Metrics:
    """All metrics of one server, in a separate registry. ``listeners`` are called with the record of each request that
    has ended."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.listeners: list[Callable[[RequestRecord], object]] = []
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        self._registry.register(RankCollector(engine))
        if engine.replicas is not None:
            self._registry.register(ReplicaCollector(engine.replicas, engine.model_name))
        self._model = engine.model_name
        self.http_requests = Counter(
            "llmk_http_requests", "Requests answered.", ["method", "path", "status"], registry=self._registry
        )
        self.http_in_flight = Gauge("llmk_http_requests_in_flight", "Requests being answered.", registry=self._registry)
        self.stat_logger_failures = Counter(
            "llmk_stat_logger_failures", "Stat loggers that failed and were dropped.", ["id"], registry=self._registry
        )
        self._tasks = Gauge("llmk_frontend_tasks", "Tasks of the server's event loop.", registry=self._registry)
        self._first = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "Between tokens of one choice.", SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._generated = self._histogram("request_generation_tokens", "Tokens generated for a request.", TOKENS)
        self._n = self._histogram("request_params_n", "Choices (n) of a request.", CHOICES)
        self._limit = self._histogram("request_params_max_tokens", "Token limit of a request.", TOKENS)
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to the first step.", SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", "From there to the first token.", SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", "From there to the last token.", SECONDS)
        self._inference = self._histogram("request_inference_time_seconds", "Prefill and decode.", SECONDS)
        self._step_tokens = self._histogram("iteration_tokens", "Tokens that a step computes.", STEP_TOKENS)
        self._step = self._histogram("engine_step_seconds", "From step to step.", STEP_SECONDS)
        self._host = self._histogram("engine_step_host_seconds", "Of these, the host's own work.", STEP_SECONDS)
        self._success = Counter(
            "llmk_request_success", "Choices that ended.", ["model_name", "finished_reason"], registry=self._registry
        )
        self._failed_calls = Counter(
            "llmk_tool_call_errors", "Tool calls that were cut off or are not JSON (invalid_call), or that violate a"
            " strict tool's schema (schema_mismatch).", ["model_name", "code"], registry=self._registry
        )  # fmt: skip
        engine.step_listeners.append(self._take_step)
        self._rendering: asyncio.Task[bytes] | None = None
        self._next_rendering = 0.0

    def add(self, collector: Collector) -> None:
        """Adds metrics that are collected when they are read."""
        self._registry.register(collector)

    async def render(self) -> bytes:
        """The text exposition format, with the numbers of now or of a moment later: who asks too often waits, so that
        rendering takes no more than :data:`RENDER_SHARE` of the event loop's time. All who wait get the same.
        """
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render(), name="llmk-metrics")
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        await asyncio.sleep(self._next_rendering - time.monotonic())
        started, self._rendering = time.monotonic(), None
        self._tasks.set(len(asyncio.all_tasks()))
        text = generate_latest(self._registry)
        ended = time.monotonic()
        self._next_rendering = ended + (ended - started) / RENDER_SHARE
        return text

    def snapshot(self) -> StatsSnapshot:
        """The same metrics for stat loggers. May be called from any thread, so :attr:`_tasks` is not updated."""
        return StatsSnapshot(
            time.time(),
            tuple(
                Stat(sample.name, "gauge" if family.type == "gauge" else "counter", sample.value, dict(sample.labels))
                for family in self._registry.collect()
                for sample in family.samples
                if not sample.name.endswith("_created")
            ),
        )

    async def observe(
        self, deltas: AsyncGenerator[ChoiceDelta, None], record: RequestRecord
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """Yields ``deltas`` unchanged, and records their times in the metrics and in ``record``. A stream that does not
        reach its end counts as aborted."""
        try:
            async with aclosing(deltas) as items:
                async for delta in items:
                    self._tick(delta, record)
                    yield delta
        except BaseException as error:
            record.error = error
            raise
        finally:
            record.ended = time.monotonic()
            self._count(record)
            for listener in self.listeners:
                listener(record)

    def _tick(self, delta: ChoiceDelta, record: RequestRecord) -> None:
        if delta.prompt:
            return
        now = time.monotonic()
        if delta.index in record.last:
            self._between.observe(now - record.last[delta.index])
        elif not record.last:
            record.first = now
            self._first.observe(now - record.arrived)
        record.last[delta.index] = now
        if delta.finish_reason is not None:
            record.reasons[delta.index] = delta.finish_reason
            self._success.labels(self._model_of(record), delta.finish_reason).inc()
        for event in delta.events:
            if (code := call_error(event)) is not None:
                self._failed_calls.labels(self._model_of(record), code).inc()
        if delta.times is not None:
            record.times.append(delta.times)
            self._take_times(delta.times)

    def _count(self, record: RequestRecord) -> None:
        if record.error is not None:
            self._success.labels(self._model_of(record), "abort").inc()
            return
        self._whole.observe(record.ended - record.arrived)
        self._prompt.observe(record.usage.prompt_tokens)
        self._generated.observe(record.usage.completion_tokens)
        self._n.observe(record.job.params.n)
        if record.job.params.max_tokens is not None:
            self._limit.observe(record.job.params.max_tokens)

    def _model_of(self, record: RequestRecord) -> str:
        """What the request calls the model: its adapter, if it has one."""
        return record.job.context.adapter or self._model

    def _take_times(self, times: SequenceTimes) -> None:
        self._queue.observe(times.queue)
        self._prefill.observe(times.prefill)
        self._decode.observe(times.decode)
        self._inference.observe(times.prefill + times.decode)

    def _take_step(self, step: StepTimes) -> None:
        self._step_tokens.observe(step.num_tokens)
        self._step.observe(step.seconds)
        self._host.observe(step.host_seconds)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"llmk_{name}", text, ["model_name"], buckets=buckets, registry=self._registry)
        return family.labels(self._model)
