"""A fleet of replicas, simulated: how often prefixes hit, how long first tokens take, what a node's death costs.

    python benchmarks/fleet.py                                    # 8 replicas, by each router
    python benchmarks/fleet.py --replicas 1 8 64 1000 --router prefix_aware --death
    python benchmarks/fleet.py --traffic tenants --seed 3

What is simulated is the device: how long steps take was measured on one GPU (``fleet_steps.py``), batches and caches
are kept as an engine would. ``fleet_check.py`` compares with real replicas. What routes is the real code: the routers
of the wheels, on the states that ``llmk.engine.processes.replica`` makes, whose blocks are known by the events that
replicas send. Traffic is sessions of several turns, of the kinds of ``fleet_traffic.KINDS``.

A line per run: the share of prompt tokens that were cached, and that one big cache would have had; tokens computed by
the busiest replica over the mean; times to the first token; goodput, which is output tokens per second of requests
whose first token came within ``--slo`` seconds; and the time that a choice took.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from fleet_device import Cache, Device, Running, SimulatedReplica
from fleet_traffic import BLOCK, KINDS, Session, Shape, sessions

from llmk.api import RoutedRequest, Router, RouterContext
from llmk.engine.processes.replica import Placed, Replica
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.least_work import LeastWork
from llmk.engine.wire.block_events import AllBlocksCleared
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk_policies.least_loaded import LeastLoaded
from llmk_policies.prefix_aware import PrefixAware
from llmk_policies.round_robin import RoundRobin

ROUTERS: dict[str, type[Router]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "built_in": LeastWork,
    "prefix_aware": PrefixAware,
}
DEVICE = "qwen3-8b-h100"
NODE = 8
"""Replicas that go together when a node dies; of fewer than eight nodes, a smaller part."""
RESTART_SECONDS = 60.0
"""Until a replica that died is back, with an empty cache."""


@dataclass(slots=True)
class Result:
    """What came of a run."""

    done: list[Running] = field(default_factory=list)
    seconds: float = 0.0
    choices: list[float] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    died: float = 0.0
    lost: int = 0

    def line(self, slo: float, ideal: float) -> dict[str, Any]:
        """The figures."""
        firsts = sorted(one.first - one.arrived for one in self.done)
        good = sum(one.output for one in self.done if one.first - one.arrived <= slo)
        hit = sum(one.hit for one in self.done) / max(1, sum(one.looked_up for one in self.done))
        per_token = sorted((one.last - one.first) / max(1, one.output - 1) for one in self.done)
        line = {
            "requests": len(self.done),
            "hit": round(hit, 4),
            "of_one_cache": round(hit / ideal, 3) if ideal else None,
            "busiest": round(max(self.computed) / statistics.mean(self.computed), 3),
            "ttft_ms": {f"p{share}": round(1e3 * _at(firsts, share), 1) for share in (50, 90, 99)},
            "ms_per_token": round(1e3 * _at(per_token, 50), 2),
            "goodput": round(good / self.seconds, 1),
            "choice_us": round(1e6 * statistics.median(self.choices), 1),
        }
        if self.died:
            hurt = sorted(
                one.first - one.arrived for one in self.done if 0 <= one.arrived - self.died < RESTART_SECONDS
            )
            line |= {"lost": self.lost, "ttft_p99_after_ms": round(1e3 * _at(hurt, 99), 1) if hurt else None}
        return line


def _at(values: list[float], share: int) -> float:
    return values[min(len(values) - 1, len(values) * share // 100)]


class Fleet:
    """Replicas, and the sessions that they serve. ``death``: seconds at which the first node dies; 0: none does."""

    def __init__(
        self, device: Device, num: int, router: Router, shape: Shape, seed: int = 0, death: float = 0.0
    ) -> None:
        self.result = Result(died=death)
        self._device, self._router, self._shape = device, router, shape
        self._members: dict[int, tuple[Replica, SimulatedReplica]] = {}
        for number in range(num):
            self._start(number)
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = itertools.count()
        self._length = 64.0
        self._first_death = death
        for at, session in sessions(shape, seed):
            self._at(at, "turn", (session, 0))
        if death:
            self._at(death, "die", range(max(1, min(NODE, num // NODE))))

    def run(self) -> Result:
        """Until every session has ended."""
        now = 0.0
        while self._events:
            now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(now, what)
        self.result.seconds = max(one.last for one in self.result.done)
        self.result.computed += [one.computed for replica, one in self._members.values() if not replica.draining]
        return self.result

    def _at(self, when: float, kind: str, what: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, what))

    def _start(self, number: int) -> None:
        alive = cast(Supervisor, SimpleNamespace(outage=None, ended=""))
        simulated = SimulatedReplica(self._device, Cache(self._device.blocks), random=Random(number))
        self._members[number] = Replica(number, alive), simulated

    def _turn(self, now: float, what: tuple[Session, int]) -> None:
        """A session sends its next prompt."""
        session, turn = what
        new, output, _ = session.turns[turn]
        session.length += new
        context = RequestContext(tenant=session.tenant, session=session.name)
        request = EngineRequest(id=f"{session.number}/{turn}", context=context, prompt_token_ids=[], params=_PARAMS)
        placed = Placed(request.id, request.id, request, session.blocks(session.length))
        self._place(now, Running(placed, session, session.length, output, now))

    def _place(self, now: float, one: Running) -> None:
        tokens = one.prompt + one.made
        expected = max(1, round(self._length))
        facts = RoutedRequest(
            tenant=one.session.tenant,
            session=one.session.name,
            blocks=one.placed.blocks,
            block_size=BLOCK,
            num_prompt_tokens=tokens,
            expected_tokens=expected,
        )
        started = time.perf_counter()
        states = [replica.state(1.0) for replica, _ in self._members.values()]
        chosen = self._router.choose(facts, states)
        self.result.choices.append(time.perf_counter() - started)
        replica, simulated = self._members[int(chosen.id.partition("-")[2])]
        one.placed.request.prompt_token_ids = range(tokens)  # type: ignore[assignment] # its length counts
        replica.give(one.placed, expected, chosen.cached_tokens(facts))
        simulated.waiting.append(one)
        if simulated.is_running:
            self._step_at(simulated.cut(now), replica, simulated)
        else:
            self._go_on(now, replica, simulated)

    def _go_on(self, now: float, replica: Replica, simulated: SimulatedReplica) -> None:
        if end := simulated.plan(now):
            replica.stats.running = len(simulated.batch)
            self._step_at(end, replica, simulated)

    def _step_at(self, when: float, replica: Replica, simulated: SimulatedReplica) -> None:
        self._at(when, "step", (replica, simulated, simulated.version))

    def _step(self, now: float, what: tuple[Replica, SimulatedReplica, int]) -> None:
        """Steps of a replica end."""
        replica, simulated, version = what
        if version != simulated.version:
            return
        made, ended, events = simulated.finish()
        replica.blocks.take(events)
        for one, tokens in made.items():
            replica.progress(one.placed, tokens)
        for one in ended:
            replica.drop(one.placed)
            self._ended(now, one)
        self._go_on(now, replica, simulated)

    def _ended(self, now: float, one: Running) -> None:
        self.result.done.append(one)
        self._length += 0.05 * (one.output - self._length)
        session, turn = one.session, int(one.placed.id.partition("/")[2]) + 1
        session.length += one.output
        if turn < len(session.turns):
            self._at(now + session.turns[turn][2], "turn", (session, turn))

    def _die(self, now: float, numbers: range) -> None:
        """A node dies; what it had goes on elsewhere."""
        lost: list[Running] = []
        for number in numbers:
            replica, simulated = self._members.pop(number)
            replica.blocks.take([AllBlocksCleared()])
            for one in simulated.lose():
                replica.drop(one.placed)
                lost.append(one)
        self.result.lost = len(lost)
        for one in lost:
            one.moves += 1
            self._place(now, one)
        self._at(now + RESTART_SECONDS, "back", numbers)

    def _back(self, now: float, numbers: range) -> None:
        for number in numbers:
            self._start(number)
            self._members[number][0].draining = True  # what it computes is not compared: it was away


_PARAMS = SamplingParams()


def of_one_cache(result: Result, blocks: int) -> float:
    """The share of prompt tokens that one cache of all replicas' size would have had, for the same requests in the same
    order."""
    cache, hit, total = Cache(blocks), 0, 0
    events = [(one.arrived, True, one) for one in result.done] + [(one.last, False, one) for one in result.done]
    for _, comes, one in sorted(events, key=lambda event: event[:2]):
        if comes:
            found = one.session.blocks(one.prompt)
            hit += min(cache.hit(found) * BLOCK, one.prompt - 1)
            total += one.prompt
            cache.store(found)
        else:
            cache.store(one.session.blocks(one.prompt + one.output))
    return hit / max(1, total)


def simulate(
    device: Device,
    num: int,
    router: str,
    shape: Shape,
    *,
    slo: float,
    death: float = 0.0,
    way: float = 0.0,
    seed: int = 0,
) -> dict[str, Any]:
    """The figures of one run. ``way`` is how long a request and its first token are on their way."""
    started = time.perf_counter()
    result = Fleet(device, num, ROUTERS[router](RouterContext()), shape, seed, death).run()
    for one in result.done:
        one.arrived -= way
    ideal = of_one_cache(result, num * device.blocks)
    line = {"replicas": num, "router": router} | result.line(slo, ideal)
    return line | {"simulated_s": round(result.seconds, 1), "took_s": round(time.perf_counter() - started, 1)}


def main() -> int:
    """Prints a line of JSON per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8])
    parser.add_argument("--router", nargs="+", choices=sorted(ROUTERS), default=list(ROUTERS))
    parser.add_argument("--traffic", nargs="+", choices=sorted(KINDS), default=["chat"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rate", type=float, default=1.0, help="sessions that start per second and replica")
    parser.add_argument("--sessions", type=int, default=150, help="sessions per replica")
    parser.add_argument("--device", default=DEVICE, help="that was measured")
    parser.add_argument("--blocks", type=int, help="of a replica's cache; by default, as measured")
    parser.add_argument("--slo", type=float, default=0.5, help="seconds to the first token that count as good")
    parser.add_argument("--death", action="store_true", help="a node of 8 dies half-way")
    args = parser.parse_args()
    device = Device.load(args.device)
    device = replace(device, blocks=args.blocks or device.blocks)
    death = args.sessions / args.rate / 2 if args.death else 0.0
    for num, kind, seed, router in itertools.product(args.replicas, args.traffic, args.seeds, args.router):
        shape = replace(KINDS[kind], rate=args.rate * num, sessions=args.sessions * num)
        line = {"traffic": kind, "seed": seed}
        line |= simulate(device, num, router, shape, slo=args.slo, death=death, seed=seed)
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
