"""Compares the simulated fleet with three real replicas, whose steps take known times.

The replicas are engines in processes of their own, with the real scheduler, cache, supervisor and router; in place of a
model, each step sleeps as long as the device that is simulated would take. Both get the same sessions. What steps took
beyond that, and what a request and its answer took on their way between processes, is measured and given to the
simulation, whose subject it is not: on a machine that is busy, each process that is woken waits for its turn.
Prints a line of JSON for each; 1 where time to the first token (p50) or goodput differ by more than :data:`WITHIN`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine import NullRunner, Sleeping, SleepingRunner
from fleet_device import Device
from fleet_traffic import BLOCK, Session, Shape, sessions

from llmk.api import RouterContext
from llmk.config.replicas_section import ReplicasSection
from llmk.engine.core import EngineCore
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.processes.replicas import Replicas
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.guarded_router import GuardedRouter
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import StepPlan
from llmk.planning.cache_groups import CacheGroup
from llmk_policies.prefix_aware import PrefixAware

REPLICAS, WITHIN, SLO, PROBES = 3, 0.15, 1.0, 15
DEVICE = Device(step=60e-3, decode=6e-4, prompt=6e-4, context=0.0, blocks=2_000, max_seqs=32, max_tokens=256)
SHAPE = Shape(rate=0.9, sessions=60, turns=4.0, groups=6, shared=128, prompt=80.0, output=40.0, think=3.0)
VOCABULARY, LONGEST = 1000, 8192


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


async def start(number: int) -> Supervisor:
    """A real replica."""
    return await Supervisor.start(
        lambda: ProcessClient.start(asdict(DEVICE), builder="fleet_check:build"), restart_seconds=60
    )


class Client:
    """Sends the sessions to real replicas, and waits for their answers."""

    def __init__(self, replicas: Replicas) -> None:
        self.firsts: list[float] = []
        self.per_token: list[float] = []
        self.late: list[float] = []
        """What each step took beyond the time that it slept."""
        self.good = self.hit = self.looked_up = 0
        self._replicas = replicas
        self._answers: dict[str, asyncio.Queue[Any]] = {}

    async def run(self) -> float:
        """How long all took, in seconds."""
        taking = asyncio.create_task(self._take())
        started = time.monotonic()
        await asyncio.gather(*(self._session(started + at, session) for at, session in sessions(SHAPE)))
        taking.cancel()
        return time.monotonic() - started

    async def way(self) -> float:
        """Seconds from request to first token beyond the step that computes it: the median of some that are alone."""
        taking, times = asyncio.create_task(self._take()), []
        for number in range(PROBES):
            prompt, id = [500 + number] * 32, f"probe/{number}"
            answers = self._answers[id] = asyncio.Queue()
            params, sent = SamplingParams(max_tokens=1), time.monotonic()
            await self._replicas.add([EngineRequest(id=id, prompt_token_ids=prompt, params=params)])
            await answers.get()
            times.append(time.monotonic() - sent - DEVICE.seconds(0, len(prompt), 0))
        taking.cancel()
        return statistics.median(times)

    async def _take(self) -> None:
        while True:
            outputs = await self._replicas.outputs.next()
            if (step := outputs.step) is not None:
                self.late.append(step.seconds - DEVICE.seconds(0, step.num_tokens, 0))
            for output in outputs.outputs:
                self._answers[output.id].put_nowait(output)

    async def _session(self, start: float, session: Session) -> None:
        await asyncio.sleep(start - time.monotonic())
        tokens = [session.group] * session.length
        for turn, (new, length, think) in enumerate(session.turns):
            await asyncio.sleep(think)
            tokens += [100 + (session.number * 7 + place) % 800 for place in range(new)]
            id, params = f"{session.number}/{turn}", SamplingParams(max_tokens=length, ignore_eos=True)
            context = RequestContext(id, tenant=session.tenant, session=str(session.number))
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
                    self.good += length * (first <= SLO)
                    self.hit += output.num_cached_tokens
                    self.looked_up += len(tokens)
                made += len(output.token_ids)
                tokens += output.token_ids
            self.per_token.append((time.monotonic() - sent - first) / max(1, length - 1))
            del self._answers[id]


async def real() -> tuple[dict[str, Any], float, float]:
    """The figures of real replicas; what their steps took beyond the times that they slept, in the mean; and what a
    request took on its way."""
    rules = ReplicasSection(count=REPLICAS)
    replicas = await Replicas.start(REPLICAS, start, GuardedRouter(PrefixAware(RouterContext())), rules)
    try:
        client = Client(replicas)
        seconds = await client.run()
        late = statistics.mean(client.late)
        way = max(0.0, await client.way() - late)
    finally:
        await replicas.close()
    firsts = sorted(client.firsts)
    shares = {f"p{share}": round(1e3 * firsts[len(firsts) * share // 100], 1) for share in (50, 90, 99)}
    hit = round(client.hit / client.looked_up, 4)
    per_token = round(1e3 * statistics.median(client.per_token), 2)
    line = {"requests": len(firsts), "hit": hit, "ttft_ms": shares, "ms_per_token": per_token}
    return line | {"goodput": round(client.good / seconds, 1)}, late, way


def check() -> int:
    """Runs both, and compares."""
    from fleet import simulate

    here = str(Path(__file__).parent)  # where engines' processes find what builds them
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    found, late, way = asyncio.run(real())
    beyond = {"late_ms": round(1e3 * late, 2), "way_ms": round(1e3 * way, 2)}
    print(json.dumps({"what": "real", **found, **beyond}), flush=True)
    device = replace(DEVICE, step=DEVICE.step + late)
    simulated = simulate(device, REPLICAS, "prefix_aware", SHAPE, slo=SLO)
    print(json.dumps({"what": "simulated", **simulated}), flush=True)
    pairs = {
        "ttft_p50": (simulated["ttft_ms"]["p50"] + 1e3 * way, found["ttft_ms"]["p50"]),
        "goodput": (simulated["goodput"], found["goodput"]),
    }
    differences = {name: round(ours / real - 1, 3) for name, (ours, real) in pairs.items()}
    print(json.dumps({"what": "simulated over real", **differences}))
    return int(any(abs(difference) > WITHIN for difference in differences.values()))
