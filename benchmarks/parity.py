"""Whether one version of llmk is as fast as another: both run in turn, round by round, on one machine.

    git worktree add /tmp/before v0.1.0 && make -C /tmp/before .venv/.installed
    python benchmarks/parity.py /tmp/before . --workload host c1 c8 cp                          # a CPU
    python benchmarks/parity.py site-before site-after --model qwen3-8b --workload w1 w3 wp     # a GPU, no network

A version is a checkout with a virtual environment in ``.venv``, or a folder that its wheels were installed into
(``pip install --target``). Each serves the model in a process that lives for all rounds; in a round every workload runs
on one version, then on the other, in alternating order. ``host`` is the scheduler's time per step
(``benchmarks/engine.py``), and needs checkouts; the other workloads are those of ``benchmarks/peers/workloads.py``.

Prints, for each workload, the geometric mean of the ratios of times (after over before) and its 95% confidence
interval. Exits with 1 where a whole interval lies above ``--limit``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from make_model import write_checkpoint  # noqa: E402
from shapes import SHAPES  # noqa: E402
from workloads import WORKLOADS, Workload  # noqa: E402

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""97.5% quantiles of Student's t distribution, from one degree of freedom on."""
HOST = "host"


@dataclass(slots=True)
class Version:
    """One of the two; ``settings`` are the configuration of its engine."""

    folder: Path
    settings: dict[str, Any]
    process: subprocess.Popen[str] | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """How its Python is called, and in which environment."""
        python = self.folder / ".venv/bin/python"
        if python.exists():
            return [str(python), *arguments], {**os.environ}
        return [sys.executable, *arguments], {**os.environ, "PYTHONPATH": str(self.folder)}

    def start(self) -> None:
        """Starts its engine, and waits until it can answer."""
        command, environment = self.command("-P", str(Path(__file__).resolve()), "--serve", json.dumps(self.settings))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self._answer()

    def run(self, name: str, seed: int, vocab_size: int) -> float:
        """Seconds of a workload."""
        if name == HOST:
            command, environment = self.command(str(self.folder / "benchmarks/engine.py"), "--steps", "200")
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            return host_time(done.stdout)
        assert self.process is not None
        assert self.process.stdin is not None
        print(json.dumps([name, seed, vocab_size]), file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Ends its engine."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()

    def _answer(self) -> float:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("parity "):
                return float(line.split()[1])
        raise SystemExit(f"the engine of {self.folder} ended: {self.process.wait()}")


def host_time(report: str) -> float:
    """The sum of all times per step in the first table of ``benchmarks/engine.py``, in milliseconds."""
    table = report.split("\n\n")[0] if report.startswith("|") else report[report.index("|") :].split("\n\n")[0]
    cells = [re.findall(r"\d+\.\d+", line) for line in table.splitlines()]
    times = [float(row[0]) for row in cells if row]
    if not times:
        raise SystemExit(f"no times in the report of benchmarks/engine.py:\n{report}")
    return sum(times)


async def answer(llm: Any, workload: Workload, seed: int, vocab_size: int) -> float:
    """Runs a workload; seconds from the first request to the last token."""
    import llmk

    params = llmk.SamplingParams(temperature=0.0, max_tokens=workload.new, ignore_eos=True)

    def named(id: str) -> dict[str, Any]:
        """How a version takes the id of a request."""
        context = getattr(llmk, "RequestContext", None)
        return {"context": context(id)} if context else {"request_id": id}

    async def one(index: int, prompt: list[int]) -> None:
        async for _ in llm.generate(prompt, params, **named(f"{seed}-{index}")):
            pass

    prompts = workload.prompts(seed, vocab_size)
    start = time.perf_counter()
    await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts)))
    return time.perf_counter() - start


def serve(settings: dict[str, Any]) -> None:
    """The process of one version: answers each line of standard input with the seconds that its workload took."""
    from llmk import AsyncLLM
    from llmk.config import load

    with asyncio.Runner() as loop:
        llm = loop.run(AsyncLLM.start(load(settings)))
        print("parity 0", flush=True)
        for line in sys.stdin:
            name, seed, vocab_size = json.loads(line)
            print("parity", loop.run(answer(llm, WORKLOADS[name], seed, vocab_size)), flush=True)
        loop.run(llm.close())


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, and the ends of its 95% confidence interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs)
    half = STUDENT[min(len(logs) - 2, len(STUDENT) - 1)] * spread / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare(versions: tuple[Version, Version], workloads: Sequence[str], rounds: int, vocab_size: int) -> None:
    """Runs all rounds, after one that warms up."""
    for number in range(rounds + 1):
        for name in workloads:
            for version in versions if number % 2 else versions[::-1]:
                took = version.run(name, number, vocab_size)
                if number:
                    version.seconds.setdefault(name, []).append(took)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--model", default="qwen3-0.6b", choices=SHAPES, help="whose weights are made up")
    parser.add_argument("--workload", nargs="+", default=["c1"], choices=[HOST, *WORKLOADS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=1.02, help="ratio of times that is still as fast")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="configuration of both engines"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(json.loads(args.serve))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(SHAPES[args.model], Path(folder), weights=False)
        settings = {"model.path": folder, "model.load_format": "dummy", "model.max_model_len": 4096}
        settings |= {"server.log_level": "warning", "cache.num_blocks": 4096}
        settings |= dict(each.split("=", 1) for each in args.set)
        versions = (Version(args.before, settings), Version(args.after, settings))
        try:
            if args.workload != [HOST]:
                for version in versions:
                    version.start()
            compare(versions, args.workload, args.rounds, SHAPES[args.model].vocab_size)
        finally:
            for version in versions:
                version.close()
    slower = False
    print("| workload | before, s | after, s | after / before | 95% interval |\n| --- | --- | --- | --- | --- |")
    for name in args.workload:
        before, after = (version.seconds[name] for version in versions)
        mean, low, high = interval([y / x for x, y in zip(before, after, strict=True)])
        slower |= low > args.limit
        cells = (statistics.median(before), statistics.median(after), mean)
        print(f"| {name} | {cells[0]:.4g} | {cells[1]:.4g} | {mean:.4f} | {low:.4f} to {high:.4f} |")
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
