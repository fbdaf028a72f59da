"""What the server's front end takes per token, where the model takes next to nothing.

    python benchmarks/front_end.py                          # 64, 384 and 1,024 streams at once
    python benchmarks/front_end.py --streams 384 --step-ms 12 --stats /tmp/front

The server is ``llmk serve`` with all of its processes, the HTTP of real clients, and the engine's real scheduler; in
place of a runner, the engine sleeps for the time of a step and draws random tokens. A line of JSON per load has tokens
per second, what a client waits for, and microseconds of processor time per token of the front end and of the engine's
process. ``events`` is how many events a stream came in: fewer than tokens where the front end was behind.
``--stats FILE`` writes where the front end spent its time, for :mod:`pstats`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import psutil
from engine import BLOCK, NullRunner, Sleeping, SleepingRunner

from llmk.engine.core import EngineCore
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.step import StepPlan, StepResult
from llmk.planning.cache_groups import CacheGroup
from llmk.planning.packed_boot import unpack
from llmk_bench.figures import summarize
from llmk_bench.load import Load
from llmk_bench.prompts import Prompts
from llmk_bench.runner import run
from llmk_bench.server_process import wait_for
from llmk_bench.target import COMPLETIONS, Target

STEP_SECONDS = "FRONT_END_STEP_SECONDS"
STATS = "FRONT_END_STATS"
PROMPT, LEAST_ID = 128, 16


class RandomRunner(SleepingRunner):
    """Samples random tokens."""

    def __init__(self, seconds: float, vocabulary: int) -> None:
        super().__init__(seconds)
        self._random = Random(0)
        self._vocabulary = vocabulary
        self._null = NullRunner()

    def submit(self, plan: StepPlan) -> Sleeping:
        """Runs nothing, after the steps before."""
        draw, most = self._random.randrange, self._vocabulary
        tokens = [[draw(LEAST_ID, most)] for work in plan.work if work.sample]
        slept = self._device.submit(time.sleep, self._seconds)
        return Sleeping(plan.step, StepResult(step=plan.step, tokens=tokens), slept)


def build(packed: dict[str, Any]) -> tuple[EngineCore, EngineInfo]:
    """The engine's process calls this in place of what loads a model."""
    boot = unpack(packed)
    config, facts = boot.settings.config, boot.facts
    num_seqs = config.scheduler.max_num_seqs
    blocks = num_seqs * (facts.max_model_len // BLOCK)
    scheduler = Scheduler(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=8192,
        max_model_len=facts.max_model_len,
        num_blocks=blocks,
        groups=[CacheGroup(BLOCK)],
        vocab_size=facts.vocab_size,
    )
    info = EngineInfo(
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=BLOCK,
        num_blocks=blocks,
        plan=boot.plan.to_dict(),
        pickled_plan=pickle.dumps(boot.plan),
    )
    runner = RandomRunner(float(os.environ[STEP_SECONDS]), facts.vocab_size)
    return EngineCore(scheduler, runner, depth=2), info


def serve(arguments: list[str]) -> int:
    """``llmk serve`` whose engine is made by :func:`build`."""
    from llmk.cli.main import main

    real = ProcessClient.build

    async def other(self: ProcessClient, packed: dict[str, Any], **options: Any) -> None:
        await real(self, packed, **{**options, "builder": "front_end:build", "early_setup": ""})

    ProcessClient.build = other  # type: ignore[method-assign,assignment]
    if not (path := os.environ.get(STATS)):
        return main(["serve", *arguments])
    with cProfile.Profile() as profile:
        status = main(["serve", *arguments])
    profile.dump_stats(path)
    return status


def seconds_of(processes: list[psutil.Process]) -> list[float]:
    """Processor time of each so far."""
    return [sum(process.cpu_times()[:2]) for process in processes]


def measure(url: str, front: psutil.Process, streams: int, new: int, vocabulary: int) -> dict[str, Any]:
    """The figures of one load."""
    model = wait_for(url, 60)
    engine = next(child for child in front.children() if "engine_process" in " ".join(child.cmdline()))
    processes = [front, engine]
    before = seconds_of(processes)
    prompts = Prompts(prompt=PROMPT, new=new, vocabulary=vocabulary, seed=streams)
    target = Target(url=url, model=model, path=COMPLETIONS)
    samples = run(target, Load(requests=streams), prompts.conversations(streams), processes=4).samples
    used = [after - start for after, start in zip(seconds_of(processes), before, strict=True)]
    line = summarize(samples)
    tokens = max(1, sum(sample.tokens for sample in samples))
    kept = {name: line.get(name) for name in ("failed", "output_tokens_per_s", "ttft_ms", "tpot_ms", "itl_ms")}
    per_token = [round(1e6 * seconds / tokens, 1) for seconds in used]
    times = {"front_us": per_token[0], "engine_us": per_token[1]}
    return {"streams": streams, **kept, "events": line.get("events"), **times}


def main() -> int:
    """Prints a line per load; 1 where a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 384, 1024], help="requests at once")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--step-ms", type=float, default=1.0, help="what a step of the engine sleeps")
    parser.add_argument("--vocabulary", type=int, default=1000, help="ids of prompts are below it")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--stats", default="", help="file for a profile of the front end")
    args, settings = parser.parse_known_args()
    url, here = f"http://127.0.0.1:{args.port}", str(Path(__file__).resolve().parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = os.environ | {STEP_SECONDS: str(args.step_ms / 1e3), STATS: args.stats, "PYTHONPATH": paths}
    limits = ["--scheduler.max-num-seqs", str(max(args.streams)), "--server.log-level", "warning"]
    code = f"import sys, front_end; sys.exit(front_end.serve({[*limits, '--port', str(args.port), *settings]!r}))"
    server = subprocess.Popen([sys.executable, "-c", code], env=environment)
    fine = True
    try:
        wait_for(url, 120, server)
        for streams in args.streams:
            line = measure(url, psutil.Process(server.pid), streams, args.new, args.vocabulary)
            print(json.dumps(line), flush=True)
            fine = fine and not line["failed"]
    finally:
        server.terminate()
        server.wait(60)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
