"""``llmk bench startup``: from the launch of ``llmk serve`` to the first token."""

from __future__ import annotations

import argparse
import asyncio
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
from pathlib import Path
from typing import IO, Any

from llmk_bench.connections import Connections
from llmk_bench.experiment import write
from llmk_bench.server_process import NoServer, stop
from llmk_bench.target import COMPLETIONS

LLMK = (sys.executable, "-P", "-c", "import sys; from llmk.cli.main import main; sys.exit(main())")
ANSWER_SECONDS = 120.0
_LOGGED = re.compile(r"(?:INFO|WARNING|ERROR) (llmk\.\S+: .*)")
_SERVING = re.compile(r"https?://\S+$")


class StartupCommand:
    """``llmk bench startup``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.description = (
            "Other options are those of llmk serve, after --: llmk bench startup -- MODEL --max-num-seqs 8"
        )
        text = "servers to start; the first finds no compiled kernels (Triton's) [%(default)s]"
        parser.add_argument("--rounds", type=int, default=2, metavar="N", help=text)
        parser.add_argument("--seconds", type=float, default=300.0, help="when to give a server up [%(default)g]")
        parser.add_argument("--output", type=Path, metavar="FILE", help="the result, as JSON")
        parser.add_argument("words", nargs="*", metavar="SERVE_ARGUMENT", help="arguments of llmk serve")

    def run(self, args: argparse.Namespace) -> int:
        """Prints when each line of a server's log came, and its first token; 1 where a server did not come up."""
        rounds: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as cache:
            for number in range(args.rounds):
                print(f"\nround {number + 1}, {'warm' if number else 'cold'}", flush=True)
                rounds.append(measure(args.words, cache, args.seconds))
        totals = [found["first_token_s"] for found in rounds]
        print("\nlaunch to first token: " + ", ".join("failed" if t is None else f"{t:.2f} s" for t in totals))
        if args.output:
            write(args.output, json.dumps({"arguments": args.words, "rounds": rounds}, indent=1) + "\n")
        return int(None in totals)


def measure(arguments: list[str], cache: str, limit: float) -> dict[str, Any]:
    """Seconds from the launch of one server until it serves and until its first token; ``None`` where it did not come
    that far."""
    start = time.perf_counter()
    found: dict[str, Any] = {"serving_s": None, "first_token_s": None}
    environment = os.environ | {"TRITON_CACHE_DIR": cache}
    command = [*LLMK, "serve", *arguments, "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for line in lines(process.stderr, process.stdout, until=start + limit):
            now = time.perf_counter() - start
            if logged := _LOGGED.search(line):
                print(f"{now:7.2f}  {logged[1][:150]}", flush=True)
            elif url := _SERVING.search(line):
                found["serving_s"] = round(now, 3)
                print(f"{now:7.2f}  {line}")
                first = asyncio.run(first_token(url[0]))
                found["first_token_s"] = round(first - start, 3)
                print(f"{first - start:7.2f}  first token", flush=True)
                return found
            elif process.poll() is not None:
                print(line, file=sys.stderr)
        print("no server: " + ("it ended" if process.poll() is not None else f"not within {limit:g} s"))
        return found
    finally:
        stop(process)


def lines(*streams: IO[str], until: float) -> Iterator[str]:
    """Lines of all streams as they come, until these end or it is ``until`` (:func:`time.perf_counter`)."""
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


async def first_token(url: str) -> float:
    """When the first token of a completion came (:func:`time.perf_counter`). Raises NoServer for another answer."""
    times: list[float] = []
    connections = Connections(url)
    body = {"prompt": "What is llmk?", "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}

    def on_event(data: bytes, now: float) -> None:
        times.append(time.perf_counter())

    async with asyncio.timeout(ANSWER_SECONDS):
        response = await connections.send(COMPLETIONS, json.dumps(body).encode(), on_event)
    connections.close()
    if response.status != 200 or not times:
        raise NoServer(f"no completion: {response.status} {bytes(response.body)[:300].decode(errors='replace')}")
    return times[0]
