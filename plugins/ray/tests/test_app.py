"""The Ray Serve application on a cluster of several nodes: a small run of ``benchmarks/chaos_cluster.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

pytest.importorskip("ray.serve", reason="needs llmk-ray[serve]")

from llmk.api import ConfigError
from llmk_ray.app import Server, build
from llmk_ray.request_router import router_named
from llmk_ray.wheels import check, versions

CHAOS = Path(__file__).parents[3] / "benchmarks" / "chaos_cluster.py"


def test_routers_are_found_by_id_and_name() -> None:
    assert router_named("prefix_aware") is router_named("policies.prefix_aware")
    with pytest.raises(ConfigError, match="no installed wheel has a router 'nearest'"):
        router_named("nearest")


def test_what_the_application_does_not_take_is_refused_when_it_is_built() -> None:
    with pytest.raises(ValidationError, match="num_gpu"):
        build({"num_gpu": 1})
    with pytest.raises(ConfigError, match="nowhere"):
        build({"router": "nowhere"})


def test_a_node_with_other_wheels_says_which() -> None:
    with pytest.raises(RuntimeError, match=r"can't stand in for other nodes: llmk-core is 0\.1\.0, not 0\.0\.9; have"):
        Server([], {}, versions() | {"llmk-core": "0.0.9"})
    check(versions() | {"llmk-elsewhere": "1.0"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        ("replica", "node", "controller"),
        ("server", "replica+controller", "node+node"),
        ("stopped",),
    ],
    ids=" ".join,
)
def test_what_may_die(kills: tuple[str, ...]) -> None:
    """A replica's actor, its server, its node, Serve's controller; two at once; and a server that hangs."""
    command = [sys.executable, str(CHAOS), "--requests", "160", "--concurrency", "12", "--port", "18126"]
    done = subprocess.run([*command, "--kills", *kills], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "| right | " in done.stdout
