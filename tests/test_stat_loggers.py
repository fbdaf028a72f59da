"""Stat loggers in a real server: one that writes, one that breaks, one that is slow and one that hangs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from installed import install
from served import Served

from llmk.api import PluginError, SelectionError, StatsSnapshot
from llmk.config import load
from llmk.planning.boot import Boot, boot
from llmk.serve.metrics import stat_loggers

pytestmark = pytest.mark.slow_file

SPECS = """
import json, threading, time
from pydantic import BaseModel
from llmk.api import StatLoggerSpec, hookimpl

NAMES = ("Writer", "Broken", "Slow", "Stuck", "Refusing")

class Options(BaseModel):
    file: str = ""

@hookimpl
def llmk_config_schema():
    return Options

@hookimpl
def llmk_stat_loggers():
    return [
        StatLoggerSpec(id=f"outlets.{name.lower()}", name=name.lower(), implementation=f"outlets_specs:{name}")
        for name in NAMES
    ]

class Writer:
    def __init__(self, context):
        self.file = open(f"{context.options['file']}.{type(self).__name__.lower()}", "w")
        self.tell(context.model_name, context.interval)
    def tell(self, *what):
        print(json.dumps(what), file=self.file, flush=True)
    def record(self, snapshot):
        self.tell(snapshot.time, [[stat.name, stat.kind, stat.value, stat.labels] for stat in snapshot.stats])
    def close(self):
        self.tell("closed", threading.current_thread() is not threading.main_thread())

class Broken(Writer):
    def record(self, snapshot):
        super().record(snapshot)
        raise ValueError("no outlet")

class Slow(Writer):
    def record(self, snapshot):
        time.sleep(0.6)
        super().record(snapshot)

class Stuck(Writer):
    def record(self, snapshot):
        threading.Event().wait()

class Refusing(Writer):
    def __init__(self, context):
        raise OSError("no such outlet")
"""
INTERVAL, RUNS = 0.1, 2.0


def told(folder: Path, name: str) -> list[Any]:
    """What a logger wrote."""
    return [json.loads(line) for line in (folder / f"out.{name}").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("outlets"), "outlets", SPECS)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[str, float, str]]:
    """What ``/metrics`` said at last, how long the server took to end, and its log."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    names = "writer,outlets.broken,slow,stuck"
    options = ["--port", "0", "--server.stat-loggers", names, "--server.stat-interval", str(INTERVAL)]
    env = {"PYTHONPATH": path, "LLMK__PLUGIN__OUTLETS__FILE": str(folder / "out")}
    with closing(Served(folder / "log", *options, env=env)) as server:
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 12, "ignore_eos": True})
        time.sleep(RUNS)
        metrics = server.get("/metrics")[1]
        server.process.send_signal(signal.SIGTERM)
        stopped = time.monotonic()
        assert server.wait() == 0
        yield metrics, time.monotonic() - stopped, (folder / "log").read_text()


@pytest.mark.slow
@pytest.mark.hook("llmk_stat_loggers")
def test_the_numbers_are_those_of_the_metrics(folder: Path, served: tuple[str, float, str]) -> None:
    lines = told(folder, "writer")
    assert lines[0] == ["demo", INTERVAL]
    assert lines[-1] == ["closed", True]
    times = [line[0] for line in lines[1:-1]]
    assert times == sorted(times)
    assert 5 < len(times) < 100
    last = {(name, *sorted(labels.items())): (kind, value) for name, kind, value, labels in lines[-2][1]}
    exported = re.findall(r"^(llmk_\w+)(?:\{(.*)\})? (\S+)$", served[0], re.MULTILINE)
    assert len(exported) > 100
    for name, labels, value in exported:
        if name.endswith("_created"):
            continue
        kind, found = last[(name, *sorted(re.findall(r'(\w+)="([^"]*)"', labels)))]
        assert kind == ("gauge" if f"# TYPE {name} gauge" in served[0] else "counter")
        assert found >= float(value) or kind == "gauge"
    assert last["llmk_generation_tokens_total", ("model_name", "demo")] == ("counter", 12.0)


def test_one_that_raises_is_dropped_once_and_counted(folder: Path, served: tuple[str, float, str]) -> None:
    metrics, _, log = served
    assert [line[0] for line in told(folder, "broken")][2:] == ["closed"]
    assert 'llmk_stat_logger_failures_total{id="outlets.broken"} 1.0' in metrics
    assert log.count("the stat logger outlets.broken of outlets 1.0 failed (ValueError: no outlet)") == 1
    assert log.count("Traceback") == 1


def test_a_slow_one_misses_snapshots_but_not_the_last(folder: Path, served: tuple[str, float, str]) -> None:
    lines, all_lines = told(folder, "slow"), told(folder, "writer")
    assert 2 < len(lines) - 2 < len(all_lines) / 2
    assert lines[-1] == ["closed", True]
    assert lines[-2][0] > all_lines[-2][0] - 1


def test_the_server_does_not_wait_for_one_that_hangs(folder: Path, served: tuple[str, float, str]) -> None:
    _, seconds, log = served
    assert len(told(folder, "stuck")) == 1
    assert "the stat logger outlets.stuck of outlets 1.0 did not end within 2 s, and is abandoned" in log
    assert seconds < 8


def booted(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Boot:
    monkeypatch.syspath_prepend(str(folder))
    return boot(load({"server.stat_loggers": name}, environ={}), verify=False)


def test_an_unknown_one_is_told_before_anything_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SelectionError, match=r"\[server\] stat_loggers names 'outlets.writter'") as caught:
        stat_loggers.choose(booted(folder, monkeypatch, "outlets.writter"))
    assert "outlets.writer" in caught.value.hint


def test_one_that_cannot_be_made_is_fatal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMetrics:
        stat_logger_failures: Any = None

        def snapshot(self) -> StatsSnapshot:
            raise AssertionError("nobody is to be told")

    async def run() -> None:
        async with stat_loggers.running(booted(folder, monkeypatch, "refusing"), "demo", NoMetrics()):  # type: ignore[arg-type]
            raise AssertionError("it was made")

    with pytest.raises(PluginError, match=r"outlets\.refusing of outlets 1\.0 can't be created") as caught:
        asyncio.run(run())
    assert "OSError: no such outlet" in str(caught.value)
