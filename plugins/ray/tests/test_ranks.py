"""Ranks on the nodes of a real Ray cluster, on this machine: the same answers, and what becomes of faults."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import Nodes, nodes
from ray_cluster import spread as over
from served import until
from spread import make, tight
from spread_nodes import check_spread

from llmk import LLM
from llmk.api import ConfigError, EngineDead, NotEnoughResources

pytestmark = pytest.mark.slow_file

DENSE, MIXTURE, LATENT, HYBRID = "qwen3-tied-odd-vocabulary", "mixtral", "deepseek-v2-biases", "qwen3-next-one-kv-head"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Two nodes, each with room for a rank."""
    with nodes(1) as made:
        made.add()
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("family", [DENSE, MIXTURE, LATENT, HYBRID])
def test_families(folder: Path, cluster: Nodes, family: str, tensor: int, pipeline: int) -> None:
    check_spread(folder, cluster, family, tensor, pipeline)


def test_too_few_places_are_named_by_node(folder: Path, cluster: Nodes) -> None:
    checkpoint = make(folder, DENSE)
    with pytest.raises(NotEnoughResources) as caught:
        LLM(str(checkpoint), **tight(checkpoint.name), **over(cluster, 4, placement_seconds=1.0))
    said = str(caught.value)
    assert "no places for 4 ranks within 1 s: each takes 1 CPU, packed, and there is room for 2 of 4" in said
    assert re.search(r"\(127\.0\.0\.2\) has free 1 of 1 CPU", said)


@pytest.mark.slow
def test_what_a_rank_writes_is_shown_with_its_node(
    folder: Path, cluster: Nodes, capfd: pytest.CaptureFixture[str]
) -> None:
    """And an environment arrives."""
    checkpoint = make(folder, DENSE)
    ray = {"environment": {"LLMK_TEST": "1", "PYTHONVERBOSE": "1"}}
    with LLM(str(checkpoint), **tight(checkpoint.name), **over(cluster, 2, **ray)):
        pass
    lines = capfd.readouterr().err.splitlines()
    assert any(re.match(r"\[rank 1 on \S+ \([\d.]+\)\] import 'llmk\.", line) for line in lines)
    assert any(re.match(r"\[rank 0 on \S+ \([\d.]+\)\] .* weights: ", line) for line in lines)


@pytest.mark.slow
def test_a_stopped_rank_is_given_up(folder: Path, cluster: Nodes) -> None:
    """Its machine hangs, or the network drops what it sends: nothing says so but silence."""
    checkpoint = make(folder, DENSE)
    given = over(cluster, 1, 2)
    given["parallel"]["silence_seconds"] = 2.0
    with LLM(str(checkpoint), **tight(checkpoint.name), **given) as llm:
        core: Any = llm._core
        stopped, start = psutil.Process(core.runner.pids[0]), time.monotonic()
        stopped.suspend()
        with pytest.raises(EngineDead, match=r"process 0 .* is not connected: .* silent for 2 s"):
            until(lambda: not core.answers() and False, timeout=20)
        assert time.monotonic() - start < 10
    until(lambda: not stopped.is_running(), timeout=10)


def test_no_cluster(folder: Path) -> None:
    checkpoint = make(folder, DENSE)
    given = {"select": {"launcher": {"use": "ray"}}, "plugin": {"ray": {"address": "127.0.0.1:1"}}}
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        LLM(str(checkpoint), **tight(checkpoint.name), **given)
