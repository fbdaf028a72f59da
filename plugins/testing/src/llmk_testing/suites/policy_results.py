"""Compares a policy with its oracle, call by call, over histories in which tenants come, leave and return."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from llmk.api import PolicyContext, PolicySpec, SchedulingPolicy, Ticket
from llmk.kernel.loader import load_object
from llmk_testing.case import Skip
from llmk_testing.growth import bytes_kept
from llmk_testing.policy_examples import PolicyExamples
from llmk_testing.suites.policy import Play

Make = Callable[[PolicyContext], SchedulingPolicy]

CONTEXTS = (
    PolicyContext(step_tokens=16),
    PolicyContext(weights={"t0": 3.0, "t1": 0.25, "t2": 1.0}, step_tokens=64),
    PolicyContext(weights={"t3": 7.0, "": 2.0}, step_tokens=1),
    PolicyContext(weights={"t0": 100.0, "t1": 40.0, "t2": 60.0}, step_tokens=2),
)
TENANTS = ("t0", "t1", "t2", "t3", "t4", "", "T0", "t00")
PRIORITIES = (0, 0, 0, 0, 1, 1, -1, 5, 1000, -(2**31), 2**31 - 1)
ARRIVALS = (0, 999_990, 2**32 - 20, 2**31 - 20)
"""The first number of a history: engines run for long, beyond what 32 bits can count."""
PHASE = 12
"""Steps for which the same tenants send requests; some phases have none, so that the queue runs empty."""
FORGOTTEN = 700
"""Steps with four tenants each after which a policy may have forgotten one that has no turn."""
KEPT = 10_000
"""Bytes that may stay in any case."""
MANY = 600
ALIKE = 300
"""Requests of one kind that are served before others come: more than 8 bits can count."""
_LATER = Ticket("later", 2**40, "t0", 0, 8, 16)
YOUNG = 8
"""Short histories of each context, in which hardly anything was used yet."""


def check_oracle(spec: PolicySpec, make: Make, seeds: Sequence[int]) -> str:
    """The same order, as far as it is read, the same victims, and the same displaced requests."""
    own = _examples(spec)
    contexts = [*CONTEXTS, *(PolicyContext(weights=weights, step_tokens=32) for weights in own.weights)]
    calls = 0
    for seed in seeds:
        for context in (contexts[seed % len(contexts)], contexts[(seed + 1) % len(contexts)]):
            both = Both(make(context), own.oracle(context), f"seed {seed}, weights {dict(context.weights)}")
            play = Phased(both, seed, slots=1 + seed % 4, capacity=(80, 150, 400)[seed % 3])
            for _ in play.steps(6 * PHASE):
                play.ask()
            calls += both.calls
    for number, context in enumerate(contexts * YOUNG):
        both = Both(make(context), own.oracle(context), f"young {number}, weights {dict(context.weights)}")
        for _ in Phased(both, seeds[0] + number, slots=2, capacity=150, active=(2, 4)).steps(PHASE):
            pass
        calls += both.calls
    for context in contexts[:2]:
        both = Both(make(context), own.oracle(context), f"many tenants, weights {dict(context.weights)}")
        for _ in Crowd(both, seeds[0], slots=40, capacity=2000).steps(8 * PHASE * 4):
            pass
        calls += both.calls
    for number, context in enumerate(contexts):
        both = Both(make(context), own.oracle(context), f"many alike, weights {dict(context.weights)}")
        _serve_alike(both, seeds[0] + number)
        calls += both.calls
        both = Both(make(context), own.oracle(context), f"a long wait, weights {dict(context.weights)}")
        _wait_long(both)
        calls += both.calls
    for context in contexts[:2]:
        both = Both(make(context), own.oracle(context), f"a long queue, weights {dict(context.weights)}")
        _read_whole(both, seeds[0])
        calls += both.calls
    return f"{calls} calls"


def _read_whole(both: Both, seed: int) -> None:
    """Two steps in which each of many requests has its turn, of which some are in prefill; then many run and one is to
    give up its blocks."""
    play = Phased(both, seed, slots=1, capacity=1)
    drawn = [play.drawn(TENANTS[number % len(TENANTS)]) for number in range(MANY)]
    queue = (*drawn[1::3], *sorted([*drawn[::3], *drawn[2::3]], key=lambda ticket: ticket.arrival))
    for _ in range(2):
        for place, ticket in enumerate(both.order(queue)):
            if place % 3:
                both.computed(ticket, 1 + place % 5)
    for size in (MANY, MANY - 1):
        both.victim(tuple(drawn[:size]))
        both.displaced(tuple(drawn[:size]), _LATER)


def _serve_alike(both: Both, seed: int) -> None:
    """Hundreds of one kind are served one by one, and some of all kinds wait behind them; then those of another."""
    play = Phased(both, seed, slots=1, capacity=1)
    number = 0
    for kind in (Ticket("", 0, "t0", 0, 5, 9), Ticket("", 0, "t1", 1, 5000, 9000), Ticket("", 0, "", -1, 1, 2)):
        for _ in range(ALIKE):
            number += 1
            one = Ticket(f"a{number}", number, kind.tenant, kind.priority, kind.num_prompt_tokens, kind.max_tokens)
            for ticket in both.order((one,)):
                both.computed(ticket, kind.num_prompt_tokens)
        queue = tuple(play.drawn(TENANTS[place % len(TENANTS)]) for place in range(12))
        for ticket in both.order(queue):
            both.computed(ticket, 3)


def _wait_long(both: Both) -> None:
    """Requests of one tenant run without a turn while thousands of tenants come and go; then they are preempted, and
    wait among new ones."""
    sleepers = tuple(Ticket(f"s{number}", number, "sleeper", 0, 4, 8) for number in range(3))
    number = len(sleepers)
    for ticket in both.order(sleepers):
        both.computed(ticket, 4)
    for _ in range(FORGOTTEN):
        queue = tuple(Ticket(f"r{at}", at, f"tenant-{at}", 0, 4, 8) for at in range(number, number + 4))
        number += 4
        for ticket in both.order(queue):
            both.computed(ticket, 4)
    fresh = [Ticket(f"r{at}", at, ("t0", "t1")[at % 2], 0, 4, 8) for at in range(number, number + 6)]
    for ticket in both.order((*sleepers, *fresh)):
        both.computed(ticket, 1)


def check_bounded(make: Make) -> str:
    """Tenants, priorities and lengths come once and never again; what is kept of them may not grow without end."""
    policy = make(PolicyContext(step_tokens=8))

    def step(number: int) -> None:
        queue = tuple(Ticket(f"{i}", i, f"tenant-{i}", -i, i + 1, i + 8) for i in range(4 * number, 4 * number + 4))
        for ticket in policy.order(queue):
            policy.computed(ticket, 4)
        policy.victim(queue[1:])
        policy.displaced(queue[1:], queue[0])

    few, many = bytes_kept(step, (750, 3000))
    assert many <= 2 * few + KEPT, f"it keeps {few} bytes after 3000 tenants, and {many} after 12000"
    return f"{many} bytes after 12000 tenants"


def _examples(spec: PolicySpec) -> PolicyExamples:
    if not spec.examples:
        raise Skip("the spec names no examples: an oracle")
    found = load_object(spec.examples)
    assert isinstance(found, PolicyExamples), f"{spec.examples} is {found!r}, expected a {PolicyExamples.__qualname__}"
    return found


class Both(SchedulingPolicy):
    """A policy and its oracle. Raises ``AssertionError`` at the first answer that differs."""

    def __init__(self, policy: SchedulingPolicy, oracle: SchedulingPolicy, where: str) -> None:
        self._policy, self._oracle, self._where = policy, oracle, where
        self.calls = 0

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """Both are read step by step, because work is reported in between."""
        before = list(requests)
        pairs: Iterable[tuple[Ticket | None, Ticket | None]]
        pairs = zip_longest(self._policy.order(requests), self._oracle.order(requests))
        for place, (found, right) in enumerate(pairs):
            self._same(f"place {place} of order()", found, right, before)
            assert found is not None
            yield found
        assert list(requests) == before, f"{self._where}: order() changed the queue that it was given"

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The same one."""
        found = self._policy.victim(running)
        self._same("victim()", found, self._oracle.victim(running), running)
        return found

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The same one, or none."""
        found = self._policy.displaced(running, newcomer)
        self._same(f"displaced() for {newcomer}", found, self._oracle.displaced(running, newcomer), running)
        return found

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Reports to both."""
        self._policy.computed(request, num_tokens)
        self._oracle.computed(request, num_tokens)

    def _same(self, what: str, found: Ticket | None, right: Ticket | None, asked: Sequence[Ticket]) -> None:
        self.calls += 1
        if found is not right:
            among = [f"{t.id} of {t.tenant!r} at {t.priority}" for t in asked]
            names = [getattr(ticket, "id", ticket) for ticket in (found, right)]
            raise AssertionError(f"{self._where}: {what} is {names[0]}, expected {names[1]}, among {among}")


class Phased(Play):
    """Some tenants send requests for a while, then others do, then none, and earlier ones return. ``active``: the least
    and most of them at a time."""

    budgets = (1, 7, 64, 5000)

    def __init__(
        self, policy: SchedulingPolicy, seed: int, slots: int, capacity: int, active: tuple[int, int] = (0, 3)
    ) -> None:
        super().__init__(policy, seed, slots, capacity)
        self._active = active
        self._number = ARRIVALS[seed % len(ARRIVALS)]

    def _arrive(self) -> None:
        self._steps = getattr(self, "_steps", -1) + 1
        phase = random.Random(1000 * self._seed + self._steps // PHASE)
        active = phase.sample(TENANTS, phase.randint(*self._active))
        rush = phase.choice((1, 1, 4))
        for tenant in active:
            if self._random.random() < 0.4:
                for _ in range(self._random.randint(1, rush)):
                    self._send(tenant)

    def _send(self, tenant: str) -> None:
        self._waiting.append(self.drawn(tenant))

    def drawn(self, tenant: str) -> Ticket:
        """The next request of a tenant."""
        edge = 2 ** self._random.choice((self._random.randrange(9), self._random.randrange(9, 18)))
        lengths = (1, 5, 40, 200, 100_000, edge, edge + 1, max(1, edge - 1))
        prompt, priority = self._random.choice(lengths), self._random.choice(PRIORITIES)
        length = prompt + self._random.choice((1, 2, 60, self._random.randint(1, 60), 4096))
        self._number += 1
        return Ticket(f"r{self._number}", self._number, tenant, priority, prompt, length)

    def ask(self) -> None:
        """Questions about any requests, which change nothing."""
        known = sorted({*self._running, *self._waiting}, key=lambda ticket: ticket.arrival)
        for _ in range(3 if known else 0):
            chosen = self._random.sample(known, self._random.randint(1, len(known)))
            running = tuple(sorted(chosen, key=lambda ticket: ticket.arrival))
            self.policy.victim(running)
            newcomer = self._random.choice([ticket for ticket in known if ticket not in chosen] or [_LATER])
            self.policy.displaced(running, newcomer)


class Crowd(Phased):
    """Tenants without end, then two alone that use much, then the crowd again, of which some were there before. In a
    crowd, those that wait longest give up, not all requests in decode have their turn, and now and then most of those
    that run are preempted."""

    def _arrive(self) -> None:
        self._steps = getattr(self, "_steps", -1) + 1
        crowded = self._steps // (2 * PHASE) % 2 == 0
        self._capacity = 60 if self._random.random() < 0.3 else 2000
        for _ in range(16 if crowded else 0):
            old = self._number > 300 and self._random.random() < 0.25
            self._send(f"one-of-many-{self._random.randrange(self._number) if old else self._number}")
        if self._steps % 3 == 0 or not crowded:
            self._send("t0")
        if self._steps % 7 < 2:
            self._send("t1")
        if self._steps % (2 * PHASE) == 0:
            self._waiting.clear()
        del self._waiting[:-100]

    def _decodes(self, ticket: Ticket) -> bool:
        return self._random.random() < 0.2
