"""The Ray Serve application on two nodes: metrics of all servers, sessions, and servers that come and go."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import nodes
from served import MODEST, until

pytest.importorskip("ray.serve", reason="needs llmk-ray[serve]")

import ray
from ray import serve

from llmk_ray.app import build
from llmk_testing.checkpoints import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.slow_file]

LONG = 600
"""Tokens that take seconds."""
WIDTH = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24, "max_position_embeddings": 2048}
SCALING = {"upscale_delay_s": 0.0, "downscale_delay_s": 2.0, "look_back_period_s": 2.0, "metrics_interval_s": 0.5}


class Application:
    """The application on a cluster of two nodes, each of which has room for a server."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})

    def deploy(self, least: int, most: int, **options: Any) -> None:
        """Starts or changes it."""
        where = {"resources": {"server": 1}, "front_resources": {"node:__internal_head__": 0.001}}
        environment = {**MODEST, "LLMK__MODEL__DTYPE": "float32", "LLMK__SERVER__LOG_LEVEL": "error"}
        count = {"min_replicas": least, "max_replicas": most}
        given = {"arguments": [str(self._checkpoint)], "environment": environment, **where, **count, **options}
        serve.run(build(given), name="llmk")

    def ask(self, prompt: str, tokens: int = 8, **more: Any) -> str:
        """The text of an answer, which is streamed."""
        given = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        content, headers = json.dumps(given | more).encode(), {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", content, headers)
        with urllib.request.urlopen(request, timeout=240) as response:
            lines = list(response)
        assert b"data: [DONE]\n" in lines
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        assert not any("error" in event for event in events), events[-1]
        return "".join(choice["text"] for event in events for choice in event["choices"])

    def metrics(self) -> str:
        """All."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            return str(response.read().decode())

    def generated(self) -> dict[str, float]:
        """Tokens that each server has generated."""
        return own(self.metrics(), "generation_tokens_total")

    def servers(self) -> int:
        """How many run, without those that drain."""
        states = serve.status().applications["llmk"].deployments["Server"].replica_states
        return states.get("RUNNING", 0)


def own(text: str, name: str) -> dict[str, float]:
    """A metric of each server."""
    found = re.findall(rf'^llmk_server_{name}{{[^}}]*server="(\w+)"[^}}]*}} (\S+)$', text, re.M)
    return {server: float(value) for server, value in found}


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama", **WIDTH)
    with nodes(1) as cluster:
        for _ in range(2):
            cluster.add(resources={"server": 1})
        ray.init(address=cluster.cluster.address, log_to_driver=False, logging_level="error")
        made = Application(checkpoint)
        made.deploy(2, 2)
        yield made
        serve.shutdown()


def test_metrics_are_of_all_servers_and_of_each(application: Application) -> None:
    before = application.generated()
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(application.ask, [f"Story {number}" for number in range(8)]))
    text = application.metrics()
    mine = own(text, "generation_tokens_total")
    assert len(mine) == 2
    assert all(mine[server] > before[server] for server in mine), "both had a part"
    total = re.search(r"^llmk_generation_tokens_total{[^}]*} (\S+)$", text, re.M)
    assert total is not None
    assert float(total[1]) == sum(mine.values())
    assert "\nllmk_servers 2.0\n" in text
    assert "\nllmk_servers_silent 0.0\n" in text


def test_a_session_stays_with_its_server(application: Application) -> None:
    """Though its prompts have nothing in common."""
    before = application.generated()
    for number in range(5):
        application.ask(f"{number} donkeys", prompt_cache_key="a session")
    after = application.generated()
    assert sorted(after[server] - before[server] for server in after) == [0, 5 * 8]


def test_a_server_that_leaves_finishes_what_it_has_and_one_comes_for_more(application: Application) -> None:
    prompts = ["Once upon a time", "There was a garden"]
    expected = [application.ask(prompt, LONG) for prompt in prompts]
    before = application.generated()
    with ThreadPoolExecutor(16) as clients:
        answers = [clients.submit(application.ask, prompt, LONG) for prompt in prompts]
        until(lambda: all(now > before[server] for server, now in application.generated().items()))
        changed = clients.submit(application.deploy, 1, 2, target_requests=4, autoscaling=SCALING)
        until(lambda: application.servers() == 1, timeout=60)
        assert sum(answer.done() for answer in answers) < 2, "one was left to a server that drained"
        assert [answer.result() for answer in answers] == expected
        changed.result()
        until(lambda: len(application.generated()) == 1, timeout=60)
        more = [clients.submit(application.ask, f"More {number}", LONG) for number in range(12)]
        until(lambda: application.servers() == 2, timeout=90)
        assert all(len(answer.result()) > LONG for answer in more)
