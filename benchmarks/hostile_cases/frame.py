"""What a case is: something that an attacker does for a few seconds, again and again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hostile_cases.wire import Outcome, Target, exchange, request

Body = Callable[[], bytes]
Act = Callable[["Attack"], Iterator[Outcome]]

MIB = 1 << 20
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MOST = 4000
"""Requests that one case may come to."""
PATIENCE = 10.0
"""Seconds that an attacker waits for valid work of which there is much."""
PAUSE = 0.01
"""Seconds between two requests of one client, so that the case is no measurement of the attacker's own machine."""


@dataclass(slots=True)
class Attack:
    """One attacker's client while its case runs: ``on`` tells whether to go on."""

    target: Target
    rng: random.Random
    until: float

    @property
    def on(self) -> bool:
        """Whether the case's time is not up."""
        return time.monotonic() < self.until

    def pause(self, seconds: float) -> None:
        """Waits, no longer than until the case's time is up."""
        time.sleep(max(0.0, min(seconds, self.until - time.monotonic())))


@dataclass(frozen=True, slots=True)
class Case:
    """A way to harm others. ``prepare`` makes, before the time runs, what ``clients`` of it then do at once: each calls
    it until the case's time is up."""

    name: str
    what: str
    prepare: Callable[[Target], Act]
    clients: int = 2


@dataclass(slots=True)
class Tally:
    """What became of a case's requests."""

    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    requests: int = 0
    """Sent in all: an outcome may be that of several."""
    slowest: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Counts one."""
        self.kinds[outcome.kind] += 1
        self.requests += outcome.requests
        self.slowest = max(self.slowest, outcome.seconds)
        if outcome.wrong and len(self.wrong) < 5:
            self.wrong.append(outcome.wrong)


def post(
    name: str,
    what: str,
    path: str,
    body: Body,
    *expected: int,
    clients: int = 2,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    may_cut: bool = False,
    patience: float = 0.0,
) -> Case:
    """A case that sends one body again and again. ``expected``: statuses that it may be answered with (400).
    ``patience``: as :func:`~hostile_cases.wire.exchange` has it."""
    statuses = frozenset(expected or (400,))

    def prepare(target: Target) -> Act:
        content = body()
        sent = [request(target, method, path, b"", {"content-length": len(content), **(headers or {})}), content]

        def act(attack: Attack) -> Iterator[Outcome]:
            yield exchange(attack.target, sent, statuses, may_cut=may_cut, patience=patience)
            attack.pause(PAUSE)

        return act

    return Case(name, what, prepare, clients)


def run(case: Case, target: Target, seconds: float, seed: int, ready: Callable[[], None]) -> Tally:
    """Runs a case; calls ``ready`` when everything is prepared. A client that raises what it doesn't foresee is a fault
    of the case, and named."""
    act = case.prepare(target)
    ready()
    tally, lock = Tally(), threading.Lock()
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        attack = Attack(target, random.Random(f"{seed}/{case.name}/{number}"), until)
        try:
            while True:
                for outcome in act(attack):
                    with lock:
                        tally.add(outcome)
                        if tally.kinds.total() >= MOST:
                            return
                if not attack.on:
                    return
        except Exception as error:
            with lock:
                tally.wrong.append(f"the attacker failed: {error!r}")

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(case.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally
