"""Metrics of several servers as one: totals, and each server's own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from llmk_ray.metrics import merged

Values = Mapping[tuple[str, str], float]


def exposition(requests: int, usage: float, up: int, seconds: float) -> str:
    """What a server says, with two tenants of which it may have seen one."""
    registry = CollectorRegistry()
    counter = Counter("llmk_http_requests", "Requests.", ["path"], registry=registry)
    counter.labels("/v1/models").inc(requests)
    if up:
        counter.labels('/a "path"\n').inc()
    Gauge("llmk_kv_cache_usage_perc", "Share.", ["model_name"], registry=registry).labels("m").set(usage)
    Gauge("llmk_engine_up", "Up.", registry=registry).set(up)
    Counter("llmk_estimated_flops_per_device", "Work.", registry=registry).inc(100 * requests)
    Histogram("llmk_time_to_first_token_seconds", "Time.", buckets=(1, 2), registry=registry).observe(seconds)
    return generate_latest(registry).decode()


def values(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels."""
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.fixture(scope="module")
def found() -> Values:
    texts = {"a": exposition(3, 0.25, 1, 0.5), "b": exposition(4, 0.75, 0, 1.5)}
    return values(merged(texts, missing=1).decode())


def test_counters_and_histograms_are_sums(found: Values) -> None:
    assert found["llmk_http_requests_total", "path=/v1/models"] == 7
    assert found["llmk_http_requests_total", 'path=/a "path"\n'] == 1
    buckets = [found["llmk_time_to_first_token_seconds_bucket", f"le={le}"] for le in ("1.0", "2.0", "+Inf")]
    assert buckets == [1, 2, 2]
    assert found["llmk_time_to_first_token_seconds_sum", ""] == 2.0


def test_shares_are_means_and_states_the_best(found: Values) -> None:
    assert found["llmk_kv_cache_usage_perc", "model_name=m"] == 0.5
    assert found["llmk_estimated_flops_per_device_total", ""] == 350
    assert found["llmk_engine_up", ""] == 1


def test_each_server_has_its_own(found: Values) -> None:
    assert found["llmk_server_http_requests_total", "path=/v1/models,server=a"] == 3
    assert found["llmk_server_http_requests_total", "path=/v1/models,server=b"] == 4
    assert found["llmk_server_engine_up", "server=b"] == 0
    assert found["llmk_server_time_to_first_token_seconds_count", "server=b"] == 1
    assert (found["llmk_servers", ""], found["llmk_servers_silent", ""]) == (2, 1)


def test_no_server_may_answer() -> None:
    assert values(merged({}, missing=2).decode()) == {("llmk_servers", ""): 0, ("llmk_servers_silent", ""): 2}
