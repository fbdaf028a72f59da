"""Ranks on nodes that are lost, or are not what the engine's machine is; each test has a cluster of its own."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import kill, nodes
from ray_cluster import spread as over
from served import until
from spread import answers, check, make, tight

from llmk import LLM, SamplingParams
from llmk.api import ConfigError, EngineDead
from llmk.engine.wire.request import EngineRequest

pytestmark = pytest.mark.slow_file

DENSE = "qwen3-tied-odd-vocabulary"
LONG = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


@pytest.mark.slow
def test_nodes_with_other_wheels_and_without_the_model_are_named(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "llmk_core-0.0.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: llmk-core\nVersion: 0.0.9\n")
    checkpoint = make(folder, DENSE)
    with nodes(0) as cluster:
        cluster.add(env_vars={"PYTHONPATH": str(tmp_path)})
        cluster.add()
        with pytest.raises(ConfigError) as caught:
            LLM(str(checkpoint), **tight(checkpoint.name), **over(cluster, 2))
        said = str(caught.value)
        assert said.startswith("1 of 2 nodes can't run what this machine planned:\n")
        assert re.search(r"\(127\.0\.0\.2\): llmk-core is 0\.0\.9, not 0\.1\.0", said)
        assert "127.0.0.3" not in said


@pytest.mark.slow
def test_a_cluster_with_another_ray_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    checkpoint = make(folder, DENSE)
    monkeypatch.setattr(ray, "__version__", "2.41.0")
    with nodes(1) as cluster:
        monkeypatch.undo()
        said = rf"can't be used from this machine: .*Ray: 2\.41\.0 .*Ray: {re.escape(ray.__version__)} "
        with pytest.raises(ConfigError, match=said):
            LLM(str(checkpoint), **tight(checkpoint.name), **over(cluster, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["loading", "in a step", "idle"])
def test_a_node_that_is_lost(folder: Path, when: str) -> None:
    checkpoint = make(folder, DENSE)
    with nodes(1) as cluster:
        lost = cluster.add()
        given = {**tight(checkpoint.name), **over(cluster, 2)}
        if when == "loading":
            threading.Timer(4.0, kill, (lost,)).start()
            with pytest.raises(EngineDead, match=r"process \d .* on \S+ \(127\.0\.0\.2\)"):
                LLM(str(checkpoint), **given)
            return
        with LLM(str(checkpoint), **given) as llm:
            core: Any = llm._core
            if when == "in a step":
                core.add(EngineRequest(id="long", prompt_token_ids=[5, 6, 7], params=LONG))
                core.step()
            kill(lost)
            go_on = core.step if when == "in a step" else core.answers
            with pytest.raises(EngineDead, match=r"process \d .* on \S+ \(127\.0\.0\.2\) (was|is|ended)"):
                until(lambda: go_on() and False, timeout=60)


@pytest.mark.slow
def test_the_head_that_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps go on without it, until it is given up."""
    from llmk_ray import launcher

    monkeypatch.setattr(launcher, "_HEAD_SECONDS", 30.0)
    checkpoint = make(folder, DENSE)
    with LLM(str(checkpoint), **tight(DENSE)) as llm:
        expected = answers(llm)
    with nodes(1) as cluster:
        cluster.add()
        with LLM(str(checkpoint), **tight(DENSE), **over(cluster, 2)) as llm:
            core: Any = llm._core
            cluster.cluster.head_node.kill_gcs_server()
            check(answers(llm), expected)
            with pytest.raises(EngineDead, match=r"is lost with the cluster's head at \S+:\d+: "):
                until(lambda: core.answers() and False, timeout=60)
