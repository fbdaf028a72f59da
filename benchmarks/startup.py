"""How long `llmk serve` takes from its launch to the first token, and what it does meanwhile.

    python benchmarks/startup.py MODEL                        # the demo model where none is named
    python benchmarks/startup.py MODEL --rounds 3 --platform.use cuda --model.max-model-len 4096

Other options are the server's. In the first round no kernel is compiled yet: Triton's cache is an empty folder, which
later rounds find filled. Each round prints when each line of the server's log came, in seconds from the launch, then
when it said that it serves, and when the first token of its first answer came. What the system's page cache holds is
left as it is.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO
from urllib.parse import urlsplit

LLMK = (sys.executable, "-c", "import sys; from llmk.cli.main import main; sys.exit(main())")
_LOGGED = re.compile(r"(?:INFO|WARNING|ERROR) (llmk\.\S+: .*)")


def main() -> int:
    """Runs the rounds; 1 where a server did not come up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=2, help="the first one is cold")
    parser.add_argument("--seconds", type=float, default=300.0, help="when to give a server up")
    args, settings = parser.parse_known_args()
    totals = []
    with tempfile.TemporaryDirectory() as cache:
        for number in range(args.rounds):
            print(f"\nround {number + 1}, {'warm' if number else 'cold'}", flush=True)
            totals.append(measure([args.model] * bool(args.model) + settings, cache, args.seconds))
    print("\nlaunch to first token, in seconds: " + ", ".join("failed" if t is None else f"{t:.2f}" for t in totals))
    return int(None in totals)


def measure(arguments: list[str], cache: str, limit: float) -> float | None:
    """Seconds from launch to first token of one server; ``None`` where there was none."""
    start = time.perf_counter()
    environment = os.environ | {"TRITON_CACHE_DIR": cache}
    command = [*LLMK, "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for line in lines(process.stderr, process.stdout, until=start + limit):
            now = time.perf_counter() - start
            if found := _LOGGED.search(line):
                print(f"{now:7.2f}  {found[1][:150]}", flush=True)
            if line.startswith("serving "):
                print(f"{now:7.2f}  {line}")
                first_token(line.split()[-1])
                total = time.perf_counter() - start
                print(f"{total:7.2f}  first token", flush=True)
                return total
        print("no server: " + ("it ended" if process.poll() is not None else f"not within {limit:g} s"))
        return None
    finally:
        process.terminate()
        process.wait(30)


def lines(*streams: IO[str], until: float) -> Iterator[str]:
    """Lines of all streams as they come, until these end or it is ``until``."""
    found: queue.Queue[str | None] = queue.Queue()

    def read(stream: IO[str]) -> None:
        for line in stream:
            found.put(line.rstrip())
        found.put(None)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    left = len(streams)
    while left and (patience := until - time.perf_counter()) > 0:
        try:
            line = found.get(timeout=patience)
        except queue.Empty:
            return
        if line is None:
            left -= 1
        else:
            yield line


def first_token(url: str) -> None:
    """Asks for a completion, and returns when its first token is there."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    body = {"prompt": "What is llmk?", "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    while not response.readline().startswith(b"data:"):
        pass
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
