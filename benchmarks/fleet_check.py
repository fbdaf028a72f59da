"""Compares the simulated fleet with three real replicas.

    python benchmarks/fleet_check.py                                                # with steps that sleep
    python benchmarks/fleet_check.py --model models/src/llmk_models/demo --load 0.3 --own-steps     # with a model
    python benchmarks/fleet_check.py --load 0.8 --prompt 300 --output 20 --seed 4

The replicas are engines in processes of their own, with the real scheduler, cache, supervisor and router, and with a
model, or steps that sleep as long as a device would compute that no two replicas share. In each round they serve
sessions, then those that are compared with the simulation, then others again. The simulation has the step times that
are fitted (``fleet_steps``) to the sessions before and after, and the rate at which sessions start. Where replicas
share processors with other programs, steps never take the same for a minute: with ``--own-steps`` they are fitted to
the steps of the compared sessions, and the simulation does not know which steps these were.

Prints a line of JSON for each; 1 where time to the first token (p50) or goodput differ by more than :data:`WITHIN`, in
the median of ``--rounds``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine import NullRunner, Sleeping, SleepingRunner
from fleet import simulate
from fleet_device import Device
from fleet_steps import StepLog, fit, measure
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
LEVEL, LEVEL_SECONDS = 8, 3.0
"""Requests of a replica at most, and for how long each number of them, before sessions start."""
SLO_STEPS = 2.0
"""Of steps with a prompt, the time in which a first token is good."""
OTHERS = 1000
"""Seeds of sessions that steps are fitted to, from here on."""
VOCABULARY, LONGEST = 1000, 2048
SHAPE = Shape(
    sessions=40, tenants=1, turns=4.0, groups=6, shared=128, prompt=80.0, output=40.0, think=3.0, longest=LONGEST - 1
)
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
    """Sends sessions to replicas, and waits for their answers. ``seed`` is theirs; what replicas have cached of other
    sessions is of no use to them."""

    def __init__(self, replicas: Replicas, seed: int) -> None:
        self.log = StepLog()
        self.seconds = 0.0
        self._firsts: list[tuple[float, int]] = []
        """Of each request: the time to the first token, and its tokens."""
        self._per_token: list[float] = []
        self._hit = self._looked_up = 0
        self._replicas, self._seed = replicas, seed
        self._answers: dict[str, asyncio.Queue[Any]] = {}

    async def run(self, shape: Shape) -> None:
        """Until all sessions have ended."""
        taking = asyncio.create_task(self._take())
        started = time.monotonic()
        await asyncio.gather(*(self._session(started + at, session) for at, session in sessions(shape, self._seed)))
        taking.cancel()
        self.seconds = time.monotonic() - started

    def line(self, slo: float) -> dict[str, Any]:
        """The figures."""
        firsts = sorted(first for first, _ in self._firsts)
        good = sum(length for first, length in self._firsts if first <= slo)
        shares = {f"p{share}": round(1e3 * firsts[len(firsts) * share // 100], 1) for share in (50, 90, 99)}
        per_token = round(1e3 * statistics.median(self._per_token), 2)
        return {
            "requests": len(firsts),
            "hit": round(self._hit / self._looked_up, 4),
            "ttft_ms": shares,
            "ms_per_token": per_token,
            "goodput": round(good / self.seconds, 1),
            "good": round(sum(first <= slo for first in firsts) / len(firsts), 3),
        }

    async def _take(self) -> None:
        while True:
            outputs = await self._replicas.outputs.next()
            self.log.take(outputs)
            for output in outputs.outputs:
                self._answers[output.id].put_nowait(output)

    async def _session(self, start: float, session: Session) -> None:
        await asyncio.sleep(start - time.monotonic())
        tokens = [session.group] * session.length
        for turn, (new, length, think) in enumerate(session.turns):
            await asyncio.sleep(think)
            tokens += [100 + (session.number * 7 + place) % 800 for place in range(new)]
            tokens += await self._ask(f"{self._seed}/{session.number}/{turn}", session, list(tokens), length)

    async def _ask(self, id: str, session: Session, tokens: list[int], length: int) -> list[int]:
        """The answer to a prompt."""
        params = SamplingParams(max_tokens=length, temperature=0, ignore_eos=True)
        context = RequestContext(id, session=session.name, cache_salt=str(self._seed))
        answers = self._answers[id] = asyncio.Queue()
        sent, first = time.monotonic(), 0.0
        self.log.sent(id, len(tokens))
        await self._replicas.add([EngineRequest(id=id, context=context, prompt_token_ids=tokens, params=params)])
        answer: list[int] = []
        while len(answer) < length:
            output = await answers.get()
            assert not output.error, output.error
            if not answer:
                first = time.monotonic() - sent
                self._firsts.append((first, length))
                self._hit += output.num_cached_tokens
                self._looked_up += len(tokens)
            answer += output.token_ids
        self._per_token.append((time.monotonic() - sent - first) / max(1, length - 1))
        del self._answers[id]
        return answer


async def _replicas(count: int, start: StartReplica) -> Replicas:
    return await Replicas.start(count, start, _router(), ReplicasSection(count=count))


def _router() -> GuardedRouter:
    return GuardedRouter(PrefixAware(RouterContext()))


def rate(device: Device, shape: Shape, load: float) -> float:
    """Sessions per second by which replicas are busy for about the share ``load`` of the time, a few requests in each
    step."""
    together = 4
    step = device.seconds(together, 0, together * int(shape.shared + shape.turns * (shape.prompt + shape.output) / 2))
    turn = shape.output * step / together + device.seconds(0, int(shape.prompt), 0)
    return load * REPLICAS / (shape.turns * turn)


async def rounds(
    start: StartReplica, shape: Shape, load: float, seed: int, count: int, *, own: bool
) -> list[dict[str, float]]:
    """Of each round, how much the simulation's figures differ from the real ones."""
    replicas = await _replicas(REPLICAS, start)
    try:
        info = replicas.info
        limits = {"most": LEVEL, "seconds": LEVEL_SECONDS, "replicas": REPLICAS}
        points, _ = await measure(replicas, info.vocab_size, info.max_model_len, **limits)
        shape = replace(shape, rate=rate(fit(points, **LIMITS)[0], shape, load))
        print(json.dumps({"what": "traffic", **asdict(shape)}), flush=True)
        found = []
        for number in range(seed, seed + count):
            others = [] if own else [await _served(replicas, shape, OTHERS + number)]
            real = await _served(replicas, shape, number)
            others += [real] if own else [await _served(replicas, shape, 2 * OTHERS + number)]
            found.append(differences(real, [one.log for one in others], shape, number))
    finally:
        await replicas.close()
    return found


async def _served(replicas: Replicas, shape: Shape, seed: int) -> Client:
    """Sessions, and a router that knows nothing of those before, as the simulation's."""
    replicas.router.close()
    replicas.router = _router()
    client = Client(replicas, seed)
    await client.run(shape)
    return client


def differences(real: Client, logs: Sequence[StepLog], shape: Shape, seed: int) -> dict[str, float]:
    """How much the figures of the simulation, of the same sessions, differ from the real ones. Steps are fitted to
    ``logs``."""
    device, near = fit([point for log in logs for point in log.points], odd=math.inf, **LIMITS)
    way = statistics.median(each for log in logs for each in log.ways)
    print(json.dumps({"what": "steps", **asdict(device), **near, "way_ms": round(1e3 * way, 2)}), flush=True)
    slo = SLO_STEPS * device.seconds(4, int(shape.prompt), 0)
    found = real.line(slo)
    print(json.dumps({"what": "real", "slo": round(slo, 3), **found}), flush=True)
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--own-steps", action="store_true", help="fit steps of the compared sessions themselves")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    here = str(Path(__file__).parent)  # where engines' processes find what builds them
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    given = {name: getattr(args, name) for name in ("sessions", "turns", "prompt", "output", "think")}
    start = starting(args.model) if args.model else start_sleeping
    shape = replace(SHAPE, **given)
    found = asyncio.run(rounds(start, shape, args.load, args.seed, args.rounds, own=args.own_steps))
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    print(json.dumps({"what": "simulated over real", "rounds": found, **medians}))
    return int(any(abs(difference) > WITHIN for difference in medians.values()))


if __name__ == "__main__":
    sys.exit(main())
