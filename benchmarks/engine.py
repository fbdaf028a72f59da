"""What the scheduler costs where kernels cost nothing, how it overlaps with a device, and how fair its policies are.
Host work alone, no device.

    python benchmarks/engine.py                    # the tables, as markdown
    python benchmarks/engine.py --all              # and whether features change tokens, and chaos: some minutes
    python benchmarks/engine.py --profile 256      # where the time of a step goes, at 256 running

A step is all that the engine does between two steps of a device: schedule, take in the sampled tokens, make outputs.
Targets: at most 1.5 ms at 256 running requests and 0.25 ms at 8, whatever the length of their contexts. Some rows have
waiting requests too, since a queue is what a busy server has.

In the table of overlap, the device is a thread that sleeps. With two steps in flight, a step should take as long as the
slower of host and device, with one as long as both.

In the fairness table, time is counted in steps: a client with one request at a time is served alone, then beside one
that sends 50 times as many requests.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from llmk.api import PolicyContext
from llmk.engine.core import EngineCore
from llmk.engine.execution.executor import Executor
from llmk.engine.scheduling.fair_policy import FairPolicy
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.cache_groups import CacheGroup
from llmk_policies.fair import Fair
from llmk_policies.fcfs import Fcfs
from llmk_policies.priority import Priority

POLICIES = {"built_in": FairPolicy, "fcfs": Fcfs, "priority": Priority, "fair": Fair}
BLOCK = 16
QUIET, FLOOD = "quiet", "flood"


@dataclass(slots=True)
class Done:
    """A step that took no time."""

    step: int
    outcome: StepResult

    def result(self) -> StepResult:
        """The step's tokens."""
        return self.outcome


@dataclass(slots=True)
class Sleeping:
    """A step that takes its time."""

    step: int
    outcome: StepResult
    slept: Future[None]

    def result(self) -> StepResult:
        """The step's tokens."""
        self.slept.result()
        return self.outcome


class NullRunner(Executor):
    """Samples the token 7 wherever one is asked for."""

    asynchronous = ""

    def submit(self, plan: StepPlan) -> Done:
        """Runs nothing."""
        return Done(plan.step, StepResult(step=plan.step, tokens=[[7] for work in plan.work if work.sample]))

    def sample(self, masks: Masks) -> None:
        """Never called: no request here has a grammar."""


class SleepingRunner(Executor):
    """The same, behind the host and in ``seconds``."""

    asynchronous = "a thread sleeps"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._null = NullRunner()
        self._device = ThreadPoolExecutor(1)

    def submit(self, plan: StepPlan) -> Sleeping:
        """Runs nothing, after the steps before."""
        outcome = self._null.submit(plan).result()
        return Sleeping(plan.step, outcome, self._device.submit(time.sleep, self._seconds))

    def sample(self, masks: Masks) -> None:
        """Never called: no request here has a grammar."""


def make_core(policy: str, *, num_seqs: int, num_blocks: int, budget: int, max_len: int, depth: int = 1) -> EngineCore:
    """An engine over the null runner."""
    scheduler = Scheduler(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_len,
        num_blocks=num_blocks,
        groups=[CacheGroup(BLOCK)],
        policy=GuardedPolicy(POLICIES[policy](PolicyContext(step_tokens=budget)), policy),
    )
    return EngineCore(scheduler, NullRunner(), depth=depth)


def request(id: str, length: int, new: int, tenant: str, random: Random) -> EngineRequest:
    """A request with a prompt of its own."""
    prompt = [random.randrange(1000) for _ in range(length)]
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    return EngineRequest(id=id, prompt_token_ids=prompt, params=params, context=RequestContext(tenant=tenant))


def running_core(policy: str, running: int, context: int, waiting: int, steps: int, depth: int) -> EngineCore:
    """An engine whose requests all decode behind ``context`` tokens, a little more or less, so that they don't all
    need their blocks in one step.
    """
    random = Random(0)
    blocks = running * ((context + 2 * steps) // BLOCK + 2)
    core = make_core(
        policy, num_seqs=running, num_blocks=blocks, budget=1 << 20, max_len=context + 4 * steps, depth=depth
    )
    for number in range(running):
        core.add(request(str(number), context + random.randrange(BLOCK), 2 * steps, f"t{number % 8}", random))
    core.step()
    for number in range(waiting):
        core.add(request(f"w{number}", 64, 1, f"t{number % 8}", random))
    for _ in range(20):
        core.step()
    if core.stats.running != running or core.stats.waiting != waiting:
        raise RuntimeError(f"{core.stats.running} run and {core.stats.waiting} wait")
    return core


def step_times(core: EngineCore, steps: int) -> list[float]:
    """Milliseconds of each of ``steps`` steps, in the engine alone, without sockets: processor time, which a busy
    machine leaves alone.
    """
    times = []
    for _ in range(steps):
        start = time.thread_time()
        core.step()
        times.append(1e3 * (time.thread_time() - start))
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def cost_rows(steps: int, depth: int) -> Iterator[list[str]]:
    """Median and p95 per policy, number of running requests, context and number of waiting requests."""
    for policy in POLICIES:
        for running in (8, 256):
            for context, waiting in ((1000, 0), (4000, 0), (1000, 1000)):
                times = step_times(running_core(policy, running, context, waiting, steps, depth), steps)
                target = 1.5 if running == 256 else 0.25
                median, high = statistics.median(times), percentile(times, 0.95)
                yield [
                    policy,
                    str(running),
                    f"{context:,}",
                    f"{waiting:,}",
                    f"{median:.3f}",
                    f"{high:.3f}",
                    f"{target}",
                ]


def overlap_rows(steps: int) -> Iterator[list[str]]:
    """Median times of a step by the device's, with one step in flight and with two, at 256 running."""
    for device in (0.0002, 0.001, 0.005):
        for depth in (1, 2):
            core = running_core("built_in", 256, 1000, 0, steps, 1)
            core = EngineCore(core.scheduler, SleepingRunner(device), depth=depth)
            times = [core.step().step for _ in range(steps)]
            host = statistics.median(step.host_seconds for step in times if step)
            whole = statistics.median(step.seconds for step in times if step)
            yield [f"{1e3 * device:g}", f"{1e3 * host:.2f}", str(depth), f"{1e3 * whole:.2f}"]


@dataclass(slots=True)
class Load:
    """Requests that arrive at a client's rate, in steps. Lengths are drawn around ``prompt`` and ``new``."""

    tenant: str
    every: float
    prompt: int
    new: int
    random: Random
    next_at: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)

    def arrivals(self, step: int) -> Iterator[EngineRequest]:
        """What arrives before ``step``."""
        while self.next_at <= step:
            id = f"{self.tenant}-{len(self.sent)}"
            self.sent[id] = step
            self.next_at += self.random.expovariate(1 / self.every)
            length = self.random.randint(self.prompt // 2, 3 * self.prompt // 2)
            yield request(id, length, self.random.randint(self.new // 2, 3 * self.new // 2), self.tenant, self.random)


def first_tokens(policy: str, *, flood: float, steps: int, slots: int, prompt: int, new: int) -> list[int]:
    """Steps to the first token of each of the quiet client's requests, beside a client at ``flood`` times its rate."""
    num_blocks = slots * ((2 * prompt + 2 * new) // BLOCK)
    core = make_core(policy, num_seqs=slots, num_blocks=num_blocks, budget=256, max_len=4096)
    loads = [Load(QUIET, 40, prompt, new, Random(1))]
    if flood:
        loads.append(Load(FLOOD, 40 / flood, prompt, new, Random(2)))
    first: dict[str, int] = {}
    for step in range(steps):
        for load in loads:
            for one in load.arrivals(step):
                core.add(one)
        for output in core.step().outputs:
            first.setdefault(output.id, step)
    quiet = loads[0].sent
    return [first.get(id, steps) - at + 1 for id, at in quiet.items() if at < steps - 200]


def fairness_rows(steps: int) -> Iterator[list[str]]:
    """The quiet client's time to first token by policy, alone and beside the flood."""
    for policy in POLICIES:
        alone = first_tokens(policy, flood=0, steps=steps, slots=16, prompt=128, new=32)
        beside = first_tokens(policy, flood=50, steps=steps, slots=16, prompt=128, new=32)
        numbers = [statistics.median(alone), percentile(alone, 0.95), statistics.median(beside)]
        high = percentile(beside, 0.95)
        yield [policy, str(len(beside)), *(f"{n:g}" for n in numbers), f"{high:g}", f"{high / numbers[1]:.2f}"]


def render(header: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Prints a markdown table, row by row."""
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header), flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def profile(policy: str, running: int, steps: int, depth: int) -> None:
    """Prints the functions that take most of a step."""
    core = running_core(policy, running, 1000, 0, steps, depth)
    profiler = cProfile.Profile()
    profiler.runcall(step_times, core, steps)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


def main() -> int:
    """Prints the tables; 1 where tokens differ or chaos left something."""
    parser = argparse.ArgumentParser(description="Scheduler cost, overlap and fairness on a null runner.")
    parser.add_argument("--steps", type=int, default=300, help="steps to measure")
    parser.add_argument("--depth", type=int, default=1, help="steps in flight")
    parser.add_argument("--profile", type=int, metavar="RUNNING", help="profile a step at this many running requests")
    parser.add_argument("--policy", default="fair", choices=POLICIES, help="for --profile")
    parser.add_argument("--all", action="store_true", help="also run equal_tokens.py and chaos.py")
    args = parser.parse_args()
    if args.profile:
        profile(args.policy, args.profile, args.steps, args.depth)
        return 0
    header = ("policy", "running", "context", "waiting", "median ms", "p95 ms", "target ms")
    render(header, cost_rows(args.steps, args.depth))
    print()
    render(("device ms", "host ms", "steps in flight", "step ms"), overlap_rows(args.steps))
    print()
    header = ("policy", "requests", "alone p50", "alone p95", "flooded p50", "flooded p95", "p95 ratio")
    render(header, fairness_rows(4000))
    beside = ("equal_tokens.py", "chaos.py") if args.all else ()
    scripts = [Path(__file__).with_name(name) for name in beside]
    return max([subprocess.run([sys.executable, str(script)]).returncode for script in scripts], default=0)


if __name__ == "__main__":
    sys.exit(main())
