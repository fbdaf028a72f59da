"""Ranks on nodes with a network between them that loses what one of them sends, or is sent; and on one whose clock is
wrong."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from networks import Network, network, why_not
from ray_cluster import Nodes, nodes
from ray_cluster import spread as over
from served import Served, until
from spread import answers, check, make, tight

from llmk import LLM, SamplingParams
from llmk.api import EngineDead
from llmk.engine.wire.request import EngineRequest

pytestmark = [pytest.mark.slow, pytest.mark.slow_file]

DENSE = "qwen3-tied-odd-vocabulary"
SILENCE = 4.0
LONG = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
BODY: dict[str, Any] = {"prompt": "One day", "max_tokens": 120, "temperature": 0, "ignore_eos": True}
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    const char *ahead = getenv("LLMK_TEST_AHEAD");
    if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += atoi(ahead);
    return failed;
}
"""
"""A clock that is ahead by so many seconds."""
AHEAD = {"LLMK_TEST_AHEAD": "7200"}


@pytest.fixture
def net() -> Any:
    if reason := why_not():
        pytest.skip(reason)
    with network() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


def add(cluster: Nodes, net: Network) -> str:
    """A node of the cluster in a namespace of its own."""
    address = net.add()
    with net.inside(address):
        cluster.add(node_ip_address=address)
    return address


def go_on(core: Any) -> bool:
    """A step, and whether all ranks answer."""
    core.step()
    return bool(core.answers())


@pytest.mark.parametrize("way", ["to the engine", "from the engine"])
def test_a_direction_that_is_lost_ends_the_engine_with_a_rank_s_name(folder: Path, net: Network, way: str) -> None:
    """That of the rank which is not heard, or of the one that waits for it and fails."""
    checkpoint = make(folder, DENSE)
    with nodes(0, node_ip_address=net.address) as cluster:
        one, other = add(cluster, net), add(cluster, net)
        given = over(cluster, 1, 2)
        given["parallel"]["silence_seconds"] = SILENCE
        with LLM(str(checkpoint), **tight(DENSE), **given) as llm:
            core: Any = llm._core
            core.add(EngineRequest(id="long", prompt_token_ids=[5, 6, 7], params=LONG))
            core.step()
            pids = core.runner.pids
            net.lose(*((one, net.address) if way == "to the engine" else (net.address, one)))
            start = time.monotonic()
            with pytest.raises(EngineDead, match=rf"process \d .* on \S+ \(({one}|{other})\) (was|is|ended|failed)"):
                until(lambda: go_on(core) and False, timeout=60)
            assert time.monotonic() - start < 30
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout=30)


def test_a_request_goes_on_on_another_node(net: Network, tmp_path: Path) -> None:
    """With the tokens that it would have had."""
    flags = ["--dtype", "float32", "--select.launcher.use", "ray", "--parallel.pipeline", "2", "--platform.use", "cpu"]
    with nodes(0, node_ip_address=net.address) as cluster:
        addresses = [add(cluster, net) for _ in range(3)]
        ray = ["--set", f"plugin.ray.address={cluster.cluster.address}", "--set", "plugin.ray.placement_seconds=30"]
        silence = ["--parallel.silence-seconds", f"{SILENCE:g}"]
        server = Served(tmp_path / "log", "--port", "0", *flags, *ray, *silence)
        try:
            status, expected = server.post("/v1/completions", BODY)
            assert status == 200
            stream = server.stream("/v1/completions", BODY, timeout=300)
            text = "".join(next(stream)["choices"][0]["text"] for _ in range(3))
            net.lose(next(each for each in addresses if f"({each})] " in server.log.read_text()), net.address)
            text += "".join(event["choices"][0]["text"] for event in stream if event.get("choices"))
            assert text == expected["choices"][0]["text"]
            assert server.metric("llmk_engine_restarts_total") >= 1
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0
        finally:
            server.close()


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, to make a clock that is wrong")
def test_clocks_may_be_apart(folder: Path, tmp_path: Path) -> None:
    """By hours: no time of one node is compared with that of another."""
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(("gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"), check=True)
    loaded = {"LD_PRELOAD": str(library)}
    ahead = subprocess.run(("date", "+%s"), env=loaded | AHEAD, capture_output=True, check=True)
    assert int(ahead.stdout) - time.time() > 7000
    checkpoint = make(folder, DENSE)
    with LLM(str(checkpoint), **tight(DENSE)) as llm:
        expected = answers(llm)
    with nodes(0) as cluster:
        cluster.add(env_vars=AHEAD)
        cluster.add()
        with LLM(str(checkpoint), **tight(DENSE), **over(cluster, 2, environment=loaded)) as llm:
            core: Any = llm._core
            check(answers(llm), expected)
            assert core.answers()
            environments = [psutil.Process(pid).environ() for pid in core.runner.pids]
            assert all(each["LD_PRELOAD"] == str(library) for each in environments)
            assert ["LLMK_TEST_AHEAD" in each for each in environments].count(True) == 1
