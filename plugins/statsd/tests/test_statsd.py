"""What arrives at a real UDP socket."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from served import Served

from llmk.api import Stat, StatLoggerContext, StatsSnapshot
from llmk_statsd.logger import StatsD
from llmk_statsd.specs import Options


@pytest.fixture
def daemon() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        yield listener


def logger(daemon: socket.socket, **options: Any) -> StatsD:
    given = Options(port=daemon.getsockname()[1], **options).model_dump()
    return StatsD(StatLoggerContext("demo", 1.0, given))


def received(daemon: socket.socket, made: StatsD, *stats: Stat) -> list[str]:
    made.record(StatsSnapshot(1.0, stats))
    return daemon.recv(65536).decode().split("\n")


def counter(value: float, name: str = "tokens_total", **labels: str) -> Stat:
    return Stat(f"llmk_{name}", "counter", value, labels)


def test_gauges_are_sent_as_they_are_and_counters_as_what_they_grew_by(daemon: socket.socket) -> None:
    with closing(logger(daemon)) as made:
        waiting = Stat("llmk_waiting", "gauge", 3.0)
        assert received(daemon, made, waiting, counter(5)) == ["llmk.waiting:3|g", "llmk.tokens_total:5|c"]
        assert received(daemon, made, waiting, counter(5)) == ["llmk.waiting:3|g"]
        assert received(daemon, made, counter(7.25)) == ["llmk.tokens_total:2.25|c"]
        assert received(daemon, made, counter(3e15 + 7.25)) == ["llmk.tokens_total:3000000000000000|c"]


def test_counters_restart_with_another_engine(daemon: socket.socket) -> None:
    with closing(logger(daemon)) as made:
        assert received(daemon, made, counter(5)) == ["llmk.tokens_total:5|c"]
        assert received(daemon, made, counter(0), counter(1, "up")) == ["llmk.up:1|c"]
        assert received(daemon, made, counter(3)) == ["llmk.tokens_total:3|c"]
        assert received(daemon, made, counter(2)) == ["llmk.tokens_total:2|c"]


def test_what_the_protocol_cant_write_is_left_out(daemon: socket.socket) -> None:
    with closing(logger(daemon)) as made:
        odd = [Stat("llmk_odd", "gauge", value) for value in (float("nan"), float("inf"))]
        assert received(daemon, made, *odd, counter(1, path="x" * 70_000), counter(1)) == ["llmk.tokens_total:1|c"]


def test_a_negative_gauge_is_no_difference(daemon: socket.socket) -> None:
    with closing(logger(daemon, prefix="")) as made:
        assert received(daemon, made, Stat("llmk_x", "gauge", -2.0)) == ["x:0|g", "x:-2|g"]


def test_labels_are_parts_or_tags(daemon: socket.socket) -> None:
    stats = [counter(1, model_name="org/a:b", path="/v1/x"), counter(2, model_name="c", path="/v1/x")]
    with closing(logger(daemon, prefix="gpu.7")) as made:
        lines = ["gpu.7.tokens_total.org_a_b.v1_x:1|c", "gpu.7.tokens_total.c.v1_x:2|c"]
        assert received(daemon, made, *stats) == lines
    with closing(logger(daemon, tags=True)) as made:
        lines = ["llmk.tokens_total:1|c|#model_name:org_a_b,path:v1_x", "llmk.tokens_total:2|c|#model_name:c,path:v1_x"]
        assert received(daemon, made, *stats) == lines


def test_buckets_are_left_out(daemon: socket.socket) -> None:
    with closing(logger(daemon)) as made:
        stats = [counter(4, "seconds_bucket", le="0.5"), counter(4, "seconds_count"), counter(1.5, "seconds_sum")]
        assert received(daemon, made, *stats) == ["llmk.seconds_count:4|c", "llmk.seconds_sum:1.5|c"]


def test_datagrams_are_filled_and_no_larger_than_they_may_be(daemon: socket.socket) -> None:
    stats = [counter(1, f"count{i}") for i in range(100)]
    with closing(logger(daemon, max_bytes=100)) as made:
        made.record(StatsSnapshot(1.0, tuple(stats)))
        lines: list[str] = []
        while len(lines) < 100:
            datagram = daemon.recv(65536)
            assert len(datagram) <= 100
            lines += datagram.decode().split("\n")
        assert lines == [f"llmk.count{i}:1|c" for i in range(100)]


def test_no_daemon_needs_to_listen(daemon: socket.socket) -> None:
    with closing(logger(daemon)) as made:
        daemon.close()
        for value in range(1, 5):
            made.record(StatsSnapshot(1.0, (counter(value),)))


@pytest.mark.slow
def test_a_server_sends_until_it_stops(daemon: socket.socket, tmp_path: Path) -> None:
    env = {"LLMK__PLUGIN__STATSD__PORT": str(daemon.getsockname()[1]), "LLMK__PLUGIN__STATSD__PREFIX": "ours"}
    options = ["--port", "0", "--server.stat-loggers", "statsd", "--server.stat-interval", "3600"]
    with closing(Served(tmp_path / "log", *options, env=env)) as server:
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 12, "ignore_eos": True})
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    daemon.settimeout(1)
    lines: list[str] = []
    while "ours.generation_tokens_total.demo:12|c" not in lines:
        lines += daemon.recv(65536).decode().split("\n")
    assert any(line.startswith("ours.kv_cache_blocks.demo:") for line in lines)
