"""Compares the simulated fleet with three real replicas.

    python benchmarks/fleet_check.py                                                # with steps that sleep
    python benchmarks/fleet_check.py --model models/src/llmk_models/demo --load 0.25       # with a model
    python benchmarks/fleet_check.py --load 0.8 --prompt 300 --output 20 --seed 4

The replicas are engines in processes of their own, with the real scheduler, cache, supervisor and router, and with a
model, or steps that sleep as long as a device would compute that no two replicas share. First one replica alone serves
other requests, from which the times of its steps are fitted (``fleet_steps``), and how long a request and its answer
are on their way. Then three serve sessions, and so does the simulation, which knows nothing else of them.

Prints a line of JSON for each; 1 where time to the first token (p50) or goodput differ by more than :data:`WITHIN`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine import NullRunner, Sleeping, SleepingRunner
from fleet import simulate
from fleet_device import Device
from fleet_steps import Meter, fit, measure
from fleet_traffic import BLOCK, Session, Shape, sessions

from llmk.api import RouterContext
from llmk.config import load
from llmk.config.replicas_section import ReplicasSection
from llmk.engine.core import EngineCore
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.processes.replicas import Replicas, StartReplica
from llmk.engine.processes.start_engines import start_engine
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.guarded_router import GuardedRouter
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import StepPlan
from llmk.planning.boot import boot
from llmk.planning.cache_groups import CacheGroup
from llmk_policies.prefix_aware import PrefixAware

REPLICAS, WITHIN = 3, 0.15
SLEEPING = Device(
    decode=((1, 60.6e-3), (32, 79.2e-3)),
    mixed=((1, 60.6e-3), (256, 214e-3)),
    crowded=(),
    context=1e-6,
    blocks=2_000,
    max_seqs=32,
    max_tokens=256,
)
"""What engines whose steps sleep simulate. What is compared with them does not know it."""
WARM_UP, WARM_UP_SECONDS = (1, 2, 4, 8), 3.0
VOCABULARY, LONGEST = 1000, 2048
SHAPE = Shape(sessions=60, turns=4.0, groups=6, shared=128, prompt=80.0, output=40.0, think=3.0, longest=LONGEST - 1)
LIMITS = {"blocks": SLEEPING.blocks, "max_seqs": SLEEPING.max_seqs, "max_tokens": SLEEPING.max_tokens}


class TimedRunner(SleepingRunner):
    """Sleeps as long as the device takes for a step."""

    def __init__(self, device: Device) -> None:
        self._null = NullRunner()
        self._device = ThreadPoolExecutor(1)
        self._times = device

    def submit(self, plan: StepPlan) -> Sleeping:
        """Runs nothing, after the steps before."""
        outcome = self._null.submit(plan).result()
        decodes = sum(work.num_tokens == 1 and work.sample for work in plan.work)
        # A step without work only says which slots are free, which takes a device no time.
        seconds = self._times.seconds(decodes, plan.num_tokens - decodes, 0) if plan.work else 0.0
        return Sleeping(plan.step, outcome, self._device.submit(time.sleep, seconds))


def build(packed: dict[str, Any]) -> tuple[EngineCore, EngineInfo]:
    """The engine's process calls this in place of what loads a model."""
    device = Device(**packed)
    scheduler = Scheduler(
        max_num_seqs=device.max_seqs,
        max_num_batched_tokens=device.max_tokens,
        max_model_len=LONGEST,
        num_blocks=device.blocks,
        groups=[CacheGroup(BLOCK)],
        vocab_size=VOCABULARY,
    )
    scheduler.cache.keep_log()
    limits: dict[str, Any] = {"max_model_len": LONGEST, "vocab_size": VOCABULARY, "num_blocks": device.blocks}
    info = EngineInfo(**limits, block_size=BLOCK, shared_block_size=BLOCK, plan={})
    return EngineCore(scheduler, TimedRunner(device)), info


async def start_sleeping(number: int) -> Supervisor:
    """A real replica whose steps sleep."""
    return await Supervisor.start(
        lambda: ProcessClient.start(asdict(SLEEPING), builder="fleet_check:build"), restart_seconds=60
    )


def starting(model: str) -> StartReplica:
    """What starts replicas of a model, each with one thread."""
    settings = {"model.path": model, "model.max_model_len": LONGEST, "model.dtype": "float32", "platform.threads": 1}
    limits = {"max_num_seqs": SLEEPING.max_seqs, "max_num_batched_tokens": SLEEPING.max_tokens}
    settings |= {f"scheduler.{name}": value for name, value in limits.items()}
    booted = boot(load(settings | {"cache.num_blocks": SLEEPING.blocks}))

    async def start(number: int) -> Supervisor:
        return await start_engine(booted, standby=False)

    return start


class Client:
    """Sends sessions to replicas, and waits for their answers."""

    def __init__(self, replicas: Replicas, slo: float) -> None:
        self.firsts: list[float] = []
        self.per_token: list[float] = []
        self.good = self.hit = self.looked_up = 0
        self._replicas, self._slo = replicas, slo
        self._answers: dict[str, asyncio.Queue[Any]] = {}

    async def run(self, shape: Shape, seed: int) -> float:
        """How long all took, in seconds."""
        taking = asyncio.create_task(self._take())
        started = time.monotonic()
        await asyncio.gather(*(self._session(started + at, session) for at, session in sessions(shape, seed)))
        taking.cancel()
        return time.monotonic() - started

    async def _take(self) -> None:
        while True:
            outputs = await self._replicas.outputs.next()
            for output in outputs.outputs:
                self._answers[output.id].put_nowait(output)

    async def _session(self, start: float, session: Session) -> None:
        await asyncio.sleep(start - time.monotonic())
        tokens = [session.group] * session.length
        for turn, (new, length, think) in enumerate(session.turns):
            await asyncio.sleep(think)
            tokens += [100 + (session.number * 7 + place) % 800 for place in range(new)]
            id, params = f"{session.number}/{turn}", SamplingParams(max_tokens=length, temperature=0, ignore_eos=True)
            context = RequestContext(id, tenant=session.tenant, session=session.name)
            answers = self._answers[id] = asyncio.Queue()
            sent, made, first = time.monotonic(), 0, 0.0
            request = EngineRequest(id=id, context=context, prompt_token_ids=list(tokens), params=params)
            await self._replicas.add([request])
            while made < length:
                output = await answers.get()
                assert not output.error, output.error
                if not made:
                    first = time.monotonic() - sent
                    self.firsts.append(first)
                    self.good += length * (first <= self._slo)
                    self.hit += output.num_cached_tokens
                    self.looked_up += len(tokens)
                made += len(output.token_ids)
                tokens += output.token_ids
            self.per_token.append((time.monotonic() - sent - first) / max(1, length - 1))
            del self._answers[id]


async def calibrated(start: StartReplica) -> tuple[Device, float, dict[str, float]]:
    """What the steps of one replica take, the way to it and back, and how near the fit is."""
    replicas = await _replicas(1, start)
    try:
        info = replicas.info
        points, way = await measure(replicas, info.vocab_size, info.max_model_len, most=SLEEPING.max_seqs, seconds=2.0)
    finally:
        await replicas.close()
    device, near = fit(points, **LIMITS)
    return device, way, near


async def real(start: StartReplica, shape: Shape, seed: int, slo: float) -> dict[str, Any]:
    """The figures of real replicas."""
    replicas = await _replicas(REPLICAS, start)
    try:
        await _warm_up(replicas)
        client = Client(replicas, slo)
        seconds = await client.run(shape, seed)
    finally:
        await replicas.close()
    firsts = sorted(client.firsts)
    shares = {f"p{share}": round(1e3 * firsts[len(firsts) * share // 100], 1) for share in (50, 90, 99)}
    hit = round(client.hit / client.looked_up, 4)
    per_token = round(1e3 * statistics.median(client.per_token), 2)
    line = {"requests": len(firsts), "hit": hit, "ttft_ms": shares, "ms_per_token": per_token}
    return line | {"goodput": round(client.good / seconds, 1)}


async def _replicas(count: int, start: StartReplica) -> Replicas:
    return await Replicas.start(count, start, GuardedRouter(PrefixAware(RouterContext())), ReplicasSection(count=count))


async def _warm_up(replicas: Replicas) -> None:
    """Has each replica run steps of many kinds: the first of some take seconds, since they are recorded then."""
    meter = Meter(replicas, replicas.info.vocab_size, replicas.info.max_model_len, seed=2)
    for level in WARM_UP:
        await meter.run(level * REPLICAS, WARM_UP_SECONDS)


def rate(device: Device, shape: Shape, load: float) -> float:
    """Sessions per second by which replicas are busy for about the share ``load`` of the time, a few requests in each
    step."""
    together = 4
    step = device.seconds(together, 0, together * int(shape.shared + shape.turns * (shape.prompt + shape.output) / 2))
    turn = shape.output * step / together + device.seconds(0, int(shape.prompt), 0)
    return load * REPLICAS / (shape.turns * turn)


def compare(start: StartReplica, shape: Shape, load: float, seed: int) -> dict[str, float]:
    """Runs both; returns how much the simulation's figures differ from the real ones."""
    device, way, near = asyncio.run(calibrated(start))
    print(json.dumps({"what": "steps", **asdict(device), **near, "way_ms": round(1e3 * way, 2)}), flush=True)
    shape = replace(shape, rate=rate(device, shape, load))
    slo = 1.2 * device.seconds(4, int(shape.prompt), 0) + device.seconds(4, 0, 0)
    found = asyncio.run(real(start, shape, seed, slo))
    print(json.dumps({"what": "real", "rate": round(shape.rate, 3), "slo": round(slo, 3), **found}), flush=True)
    simulated = simulate(device, REPLICAS, "prefix_aware", shape, slo=slo, way=way, seed=seed)
    print(json.dumps({"what": "simulated", **simulated}), flush=True)
    pairs = {
        "ttft_p50": (simulated["ttft_ms"]["p50"], found["ttft_ms"]["p50"]),
        "goodput": (simulated["goodput"], found["goodput"]),
    }
    return {name: round(ours / max(theirs, 1e-9) - 1, 3) for name, (ours, theirs) in pairs.items()}


def main() -> int:
    """Compares; 1: they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint; none: steps sleep")
    parser.add_argument("--load", type=float, default=0.5, help="share of the time in which replicas are busy, about")
    parser.add_argument("--sessions", type=int, default=SHAPE.sessions)
    parser.add_argument("--turns", type=float, default=SHAPE.turns)
    parser.add_argument("--prompt", type=float, default=SHAPE.prompt)
    parser.add_argument("--output", type=float, default=SHAPE.output)
    parser.add_argument("--think", type=float, default=SHAPE.think)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    here = str(Path(__file__).parent)  # where engines' processes find what builds them
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    given = {name: getattr(args, name) for name in ("sessions", "turns", "prompt", "output", "think")}
    start = starting(args.model) if args.model else start_sleeping
    differences = compare(start, replace(SHAPE, **given), args.load, args.seed)
    print(json.dumps({"what": "simulated over real", **differences}))
    return int(any(abs(difference) > WITHIN for difference in differences.values()))


if __name__ == "__main__":
    sys.exit(main())
