"""A server whose ranks are on the nodes of a Ray cluster loses one: while it answers, and while it drains."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import kill, nodes
from served import Served, until

pytestmark = pytest.mark.slow_file

BODY: dict[str, Any] = {"prompt": "One day", "max_tokens": 120, "temperature": 0, "ignore_eos": True}
SPREAD = ["--dtype", "float32", "--select.launcher.use", "ray", "--parallel.tensor", "2", "--platform.use", "cpu"]


def nodes_of_ranks(server: Served) -> set[str]:
    """Where metrics say that ranks are which carried out steps."""
    line = r'^llmk_rank_steps_total{.*node="[^"]*\(([\d.]+)\)".*} [1-9]'
    return set(re.findall(line, server.get("/metrics")[1], re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("drains", [False, True], ids=["serving", "draining"])
def test_a_request_goes_on_where_a_node_is_lost(drains: bool, tmp_path: Path) -> None:
    """With the tokens that it would have had: on the node that is left, once another engine has started there."""
    with nodes(0) as cluster:
        used = [cluster.add() for _ in range(3)]
        options = ["--set", f"plugin.ray.address={cluster.cluster.address}", "--server.drain-seconds", "200"]
        server = Served(tmp_path / "log", "--port", "0", *SPREAD, *options)
        try:
            status, expected = server.post("/v1/completions", BODY)
            assert status == 200
            stream = server.stream("/v1/completions", BODY, timeout=300)
            text = "".join(next(stream)["choices"][0]["text"] for _ in range(3))
            if drains:
                server.process.send_signal(signal.SIGTERM)
            log = server.log.read_text()
            kill(next(node for node in used if f"({node.node_ip_address})] " in log))
            text += "".join(event["choices"][0]["text"] for event in stream if event.get("choices"))
            assert text == expected["choices"][0]["text"]
            log = server.log.read_text()
            assert "(stage 0, tensor rank" in log
            if drains:
                assert server.wait() == 0
            else:
                assert server.metric("llmk_engine_restarts_total") == 1
                until(lambda: len(nodes_of_ranks(server)) == 2)
        finally:
            server.close()
