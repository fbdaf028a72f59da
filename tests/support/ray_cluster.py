"""A real Ray cluster of several nodes on this machine, each with an address of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
for _name in ("READY", "HEALTH"):  # before Serve is imported: a busy machine takes long to start its proxy
    os.environ.setdefault(f"RAY_SERVE_PROXY_{_name}_CHECK_TIMEOUT_S", "60")

_STORE_BYTES = 80 << 20


class Nodes:
    """A cluster whose head has ``head_cpus``, and whose other nodes are added. ``options`` are what a launcher needs to
    use it."""

    def __init__(self, head_cpus: int, **head: Any) -> None:
        from ray.cluster_utils import Cluster

        given = {"num_cpus": head_cpus, "object_store_memory": _STORE_BYTES, "include_dashboard": False, **head}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=given)
        self._added = 1

    @property
    def options(self) -> dict[str, Any]:
        """``[plugin.ray]``."""
        return {"address": self.cluster.address, "placement_seconds": 5.0}

    def add(self, **options: Any) -> Any:
        """Adds a node with an address of its own, 127.0.0.2 for the first."""
        self._added += 1
        given = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "node_ip_address": f"127.0.0.{self._added}"}
        return self.cluster.add_node(**given | options)


@contextmanager
def nodes(head_cpus: int, **head: Any) -> Iterator[Nodes]:
    """A cluster, which is shut down at the end."""
    import ray

    made = Nodes(head_cpus, **head)
    try:
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()


def spread(cluster: Nodes, tensor: int = 1, pipeline: int = 1, **ray: Any) -> dict[str, Any]:
    """Options of an engine whose ranks run on the cluster's nodes."""
    own = {**cluster.options, **ray}
    parallel = {"tensor": tensor, "pipeline": pipeline, "silence_seconds": 5.0}
    return {"parallel": parallel, "select": {"launcher": {"use": "ray"}}, "plugin": {"ray": own}}


def kill(node: Any) -> None:
    """Kills all processes of a node at once, ranks included, as where its machine loses power."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [*raylet.children(recursive=True), raylet]:
        process.send_signal(signal.SIGKILL)
