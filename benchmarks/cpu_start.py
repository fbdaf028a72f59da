"""From the shell to the first token of a server on a CPU, and what its processes hold then: a line of JSON.

    python benchmarks/peers/make_model.py --shape qwen3-0.6b --out m
    python benchmarks/cpu_start.py m

Run it twice: the first start compiles Python's modules, unless ``PYTHONDONTWRITEBYTECODE`` is set, with which every
start does. Processor time of all processes, the client's polling excluded, tells more than the clock on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
from processes import descendants, held

ASK_SECONDS, LIMIT_SECONDS = 0.03, 120.0
SETTLE_SECONDS = 1.0
"""After the first token, until what processes hold is read."""
MB = 1e6


def main() -> None:
    """Starts the server, asks it, prints, and ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    args, options = parser.parse_known_args()
    port = free_port()
    began = time.perf_counter()
    command = (sys.executable, "-P", "-m", "llmk", "serve", args.model, "--port", str(port), *options)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        first_token(server, f"http://127.0.0.1:{port}/v1/completions", began + LIMIT_SECONDS)
        found = {"first_token_s": time.perf_counter() - began}
        time.sleep(SETTLE_SECONDS)
        times = [psutil.Process(pid).cpu_times() for pid in descendants(server.pid)]
        found["processor_s"] = sum(each.user + each.system for each in times)
        found["pss_mb"] = held(server.pid).pss / MB
        found |= {f"pss_mb_{number}": pss for number, pss in enumerate(shares(server.pid))}
        print(json.dumps({name: round(value, 2) for name, value in found.items()}))
    finally:
        server.terminate()
        server.wait(30)


def shares(pid: int) -> list[float]:
    """The proportional memory of each process in MB, the server's first."""
    return [psutil.Process(each).memory_full_info().pss / MB for each in descendants(pid)]


def first_token(server: subprocess.Popen[bytes], url: str, until: float) -> None:
    """Asks for a token until there is one. Raises ``TimeoutError``, or ``ChildProcessError`` if the server ends."""
    body = json.dumps({"prompt": "Hello there", "max_tokens": 1}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    while time.perf_counter() < until:
        if server.poll() is not None:
            raise ChildProcessError(f"llmk serve ended with {server.returncode}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
                return
        except (ConnectionError, urllib.error.URLError):
            time.sleep(ASK_SECONDS)
    raise TimeoutError(f"no token after {LIMIT_SECONDS:g} s")


def free_port() -> int:
    """A port of this machine that nothing has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
