"""What keys with quotas cost a request.

    python benchmarks/keys.py                      # 10,000 keys
    python benchmarks/keys.py --keys 100 --pairs 500

Two servers of the demo model, one with keys in a database and one with a single key of ``server.api_keys``, get the
same request by turns, each on a connection that stays open: one token of output, with a key that is drawn anew. A line
of JSON has the times of both and their differences, in milliseconds, and the processor time that the servers took for a
request. Then the server with the database is killed, started again, and asked how many requests it knows of.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from urllib.parse import urlsplit

import psutil

from llmk.serve.tenants.key_store import KeyStore

BODY = json.dumps({"model": "demo", "prompt": "hello", "max_tokens": 1, "temperature": 0})
QUOTAS = {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000, "concurrency": 100, "budget": 1 << 40}
SETTLE_SECONDS = 0.5
"""What keys use is saved within milliseconds of a request."""


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=2_000, help="requests to each server")
    parser.add_argument("--warm-up", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        store = KeyStore("sqlite")
        secrets = [store.create(f"key {number}", **QUOTAS)[0] for number in range(args.keys)]
        admin, _ = store.create("root", role="admin")
        store.close()
        with server("--tenants.database", "sqlite") as keyed, server("--api-key", "one") as plain:
            random = Random(0)
            took = [[ask(keyed, random.choice(secrets)), ask(plain, "one")] for _ in range(args.warm_up)]
            used = [keyed.seconds(), plain.seconds()]
            took = [[ask(keyed, random.choice(secrets)), ask(plain, "one")] for _ in range(args.pairs)]
            used = [keyed.seconds() - used[0], plain.seconds() - used[1]]
            time.sleep(SETTLE_SECONDS)
            keyed.kill()
        with server("--tenants.database", "sqlite") as again:
            again.connection.request("GET", "/v1/keys", headers={"authorization": f"Bearer {admin}"})
            known = json.loads(again.connection.getresponse().read())["data"]
    sent = args.warm_up + args.pairs
    names = ("with_keys", "without", "difference")
    columns = (*zip(*took, strict=True), [one - other for one, other in took])
    print(
        json.dumps(
            {
                "keys": args.keys,
                "requests": sent,
                **{f"{name}_ms": spread(column) for name, column in zip(names, columns, strict=True)},
                "processor_ms": [round(1e3 * seconds / args.pairs, 3) for seconds in used],
                "known_after_kill": sum(one["usage"]["requests"] for one in known),
            }
        )
    )


class Server:
    """A running server, and a connection to it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = psutil.Process(process.pid)
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def seconds(self) -> float:
        """Processor time of the front end, without its engine and workers."""
        times = self.process.cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        """As the kernel does where memory is out."""
        self.process.kill()
        self.process.wait()


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """``llmk serve`` with the demo model."""
    command = [sys.executable, "-m", "llmk", "serve", "--port", "0", "--platform.threads", "1", "--no-engine.standby"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield Server(process, next(re.findall(r"http://\S+", line)[0] for line in process.stdout if "://" in line))
        finally:
            process.kill()


def ask(server: Server, secret: str) -> float:
    """Seconds for a request."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {secret}"}
    started = time.perf_counter()
    server.connection.request("POST", "/v1/completions", BODY, headers)
    response = server.connection.getresponse()
    response.read()
    took = time.perf_counter() - started
    assert response.status == 200, response.status
    return took


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, mean and 99th percentile, in milliseconds."""
    found = {
        "p50": statistics.median(seconds),
        "mean": statistics.fmean(seconds),
        "p99": statistics.quantiles(seconds, n=100)[98],
    }
    return {name: round(1e3 * value, 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
