"""What clients see of a Ray Serve application while its replicas, a node and Serve's controller are killed.

    python benchmarks/chaos_cluster.py                          # 2,000 requests against three replicas
    python benchmarks/chaos_cluster.py --kills server stopped replica+controller node+node

A Ray cluster of several nodes is started on this machine, and ``llmk_ray.app`` on it. Many clients at once ask,
streamed and not, while a replica, a node and the controller are killed in turn. Every request must end within a minute,
with the undisturbed answer or an error that says that its replica was lost. Exits with 1 where any does not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

for _name in ("READY", "HEALTH"):  # before Serve is imported: a busy machine takes long to start its proxy
    os.environ.setdefault(f"RAY_SERVE_PROXY_{_name}_CHECK_TIMEOUT_S", "60")

import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from llmk_ray.app import build  # noqa: E402

REPLICAS, PATIENCE, MEMORY = 3, 60.0, 80_000_000
KILLS = ("replica", "node", "controller")
"""What may be killed, but for ``server``, the process that an actor has, and ``stopped``, which stops that without an
end. What is joined by ``+`` is killed at once."""
MODEST = {"OMP_NUM_THREADS": "1", "LLMK__PLATFORM__THREADS": "1", "LLMK__CACHE__MEMORY_GIB": "0.25"}
MODEST |= {"LLMK__ENGINE__STANDBY": "false", "LLMK__MODEL__DTYPE": "float32", "LLMK__SERVER__LOG_LEVEL": "error"}


class ServedCluster:
    """The cluster, with a node more than there are replicas, and the application on it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        node = {"num_cpus": 2, "resources": {"server": 1}, "object_store_memory": MEMORY}
        self._nodes = [self._cluster.add_node(**node) for _ in range(REPLICAS + 1)]
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="error")
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
            where = {"resources": {"server": 1}, "front_resources": {"node:__internal_head__": 0.001}}
            count = {"min_replicas": REPLICAS, "max_replicas": REPLICAS}
            serve.run(build({"environment": MODEST, **where, **count}), name="llmk")
        except BaseException:
            self.close()
            raise

    def ask(self, body: dict[str, Any]) -> str:
        """The text of an answer. Raises ValueError for an error in a stream."""
        content, headers = json.dumps(body).encode(), {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", content, headers)
        with urllib.request.urlopen(request, timeout=2 * PATIENCE) as response:
            if not body.get("stream"):
                return str(json.load(response)["choices"][0]["text"])
            lines = list(response)
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        for event in events:
            if "error" in event:
                raise ValueError(event["error"]["code"])
        if b"data: [DONE]\n" not in lines:
            raise ValueError("the stream has no end")
        return "".join(choice["text"] for event in events for choice in event["choices"])

    def kill(self, what: str) -> None:
        """Kills at once what is joined by ``+``, of different replicas, as soon as there are so many."""
        kinds = what.split("+")
        while len(victims := self._replicas()) < len(kinds):
            time.sleep(0.2)
        for kind, victim in zip(kinds, victims, strict=False):
            self._kill(kind, victim)

    def _kill(self, what: str, victim: psutil.Process) -> None:
        """Kills the controller, or something of a replica: its actor, its server, or its node."""
        if what == "controller":
            ray.kill(ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve"), no_restart=False)
        elif what == "replica":
            victim.kill()
        elif what == "server":
            victim.children()[0].kill()
        elif what == "stopped":
            victim.children()[0].suspend()
        else:
            self._kill_node(victim)

    def _kill_node(self, victim: psutil.Process) -> None:
        raylet = next(parent for parent in victim.parents() if "raylet" in parent.name())
        for node in self._nodes:
            if any(info.process.pid == raylet.pid for info in node.all_processes["raylet"]):
                self._cluster.remove_node(node, allow_graceful=False)
                self._nodes.remove(node)
                return

    def close(self) -> None:
        """Stops everything."""
        serve.shutdown()
        ray.shutdown()
        self._cluster.shutdown()

    def _replicas(self) -> list[psutil.Process]:
        """Those that have a server."""
        nodes = [info.process.pid for node in self._nodes for info in node.all_processes["raylet"]]
        children = [child for pid in nodes for child in psutil.Process(pid).children()]
        return [child for child in children if _is_replica(child) and child.children()]


def _is_replica(process: psutil.Process) -> bool:
    try:
        return "llmk:Server" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


def run(cluster: ServedCluster, count: int, concurrency: int, kills: Sequence[str]) -> tuple[Counter[str], float]:
    """What came of the requests, and how long the slowest took."""
    bodies = [
        {"prompt": f"Story {number}: once upon a time", "max_tokens": 24, "temperature": 0} for number in range(8)
    ]
    right = [cluster.ask(body) for body in bodies]
    outcomes: Counter[str] = Counter()
    times = []

    def one(number: int) -> int:
        body, began = bodies[number % len(bodies)], time.monotonic()
        try:
            answer = cluster.ask(body | {"stream": number % 2 == 0})
            outcomes["right" if answer == right[number % len(bodies)] else f"wrong: {answer!r}"] += 1
        except urllib.error.HTTPError as error:
            outcomes[f"error {error.code} {_code_of(error.read())}"] += 1
        except (ValueError, OSError) as error:
            outcomes[f"error {error}"] += 1
        times.append(time.monotonic() - began)
        return number

    at = {count * (place + 1) // (len(kills) + 1): what for place, what in enumerate(kills)}
    with ThreadPoolExecutor(concurrency) as clients, ThreadPoolExecutor(1) as killer:
        killed = [killer.submit(cluster.kill, at[done]) for done in clients.map(one, range(count)) if done in at]
    for kill in killed:
        kill.result()
    return outcomes, max(times)


def _code_of(body: bytes) -> str:
    """The code of an error object; what else was sent, where it is none."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return f"without an error object: {body[:200]!r}"


def main() -> int:
    """Prints what came of it; 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--kills", nargs="+", default=KILLS)
    parser.add_argument("--port", type=int, default=18_125)
    args = parser.parse_args()
    cluster = ServedCluster(args.port)
    try:
        began = time.monotonic()
        outcomes, slowest = run(cluster, args.requests, args.concurrency, args.kills)
        print(f"| outcome | requests of {args.requests} in {time.monotonic() - began:.0f} s |\n| --- | --- |")
        for what, number in sorted(outcomes.items()):
            print(f"| {what} | {number} |")
        print(f"\nthe slowest took {slowest:.1f} s")
    finally:
        cluster.close()
    clear = sum(number for what, number in outcomes.items() if what == "right" or "replica_lost" in what)
    return int(clear != args.requests or slowest > PATIENCE)


if __name__ == "__main__":
    sys.exit(main())
