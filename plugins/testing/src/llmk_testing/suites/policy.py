"""The suite of scheduling policies: tests their contract on random queues."""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import islice

from llmk.api import PolicyContext, PolicySpec, SchedulingPolicy, Ticket
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case
from llmk_testing.clocks import moving_clocks
from llmk_testing.parsers import counted_lines
from llmk_testing.settings import leaving_settings
from llmk_testing.watched_tickets import Name, Number, Watched

Make = Callable[[PolicyContext], SchedulingPolicy]

CONTEXTS = (
    PolicyContext(),
    PolicyContext(weights={"a": 3.0, "b": 0.25, "": 1e-6, "unknown": 1e9}, step_tokens=64),
    PolicyContext(step_tokens=1),
)
TENANTS = ("", "a", "b", "a-tenant-with-a-long-name", "\x00é")
_PACES = (1e-6, 0.4, 3601.7)
"""Seconds between two looks at a clock."""
_LONG = 3000
"""Requests of a long queue."""
PRIORITIES = (0, 0, 0, 1, -1, -(2**40), 2**40)


def cases(spec: PolicySpec, bench: Bench) -> Iterator[Case]:
    """The cases of one policy."""

    def make(context: PolicyContext) -> SchedulingPolicy:
        made: SchedulingPolicy = load_object(spec.implementation)(deepcopy(context))
        return made

    def case(name: str, run: Callable[..., str | None], *arguments: object) -> Case:
        return Case(spec.id, "policy", name, partial(run, make, *arguments))

    from llmk_testing.suites import policy_results

    seeds = range(bench.seed, bench.seed + (40 if bench.thorough else 8))
    yield case("it returns the given requests, each once", check_answers, seeds)
    yield case("the same history gives the same answers", check_repeatable, seeds)
    yield case("asking changes no answer", check_order_is_stable, seeds)
    yield case("displaced requests don't displace each other endlessly", check_displacement_ends, seeds)
    yield case("equal requests are all served, however many come after", check_no_starvation)
    yield case("state of a request is freed with it", check_tickets_go)
    yield case("a step takes time in proportion to the queue", check_linear)
    yield case("what it is made with stays as it is", partial(check_context, spec), seeds)
    yield case("what the whole process shares stays as it is", check_settings, seeds)
    yield case("what it keeps of tenants is bounded", policy_results.check_bounded)
    yield case("its answers are those of its oracle", partial(policy_results.check_oracle, spec), seeds)


def check_answers(make: Make, seeds: Sequence[int]) -> None:
    """The engine permanently replaces a policy that raises or returns other requests."""
    for seed in seeds:
        for context in CONTEXTS:
            for _ in Play(make(context), seed).steps(60):
                pass
    for context in CONTEXTS:
        queue = tuple(_ticket(random.Random(seeds[0]), number) for number in range(_LONG))
        found = [ticket.id for ticket in make(context).order(queue)]
        known = {ticket.id for ticket in queue}
        assert known.issuperset(found), f"of {_LONG} requests, others come back"
        assert len(found) == len(set(found)), f"of {_LONG} requests, some come back twice"


def check_repeatable(make: Make, seeds: Sequence[int]) -> None:
    """No hash of an address, no state shared between instances, and no clock, be it slow or fast."""
    package = type(make(CONTEXTS[1])).__module__.partition(".")[0]

    def answers(seed: int, seconds: float) -> list[list[str]]:
        with moving_clocks(package, seconds):
            return list(Play(make(CONTEXTS[1]), seed).steps(40))

    for seed in seeds:
        first = answers(seed, _PACES[0])
        for pace in _PACES:
            for number, (one, other) in enumerate(zip(first, answers(seed, pace), strict=True)):
                what = f"in step {number} of seed {seed} it returned {one}, in a second run"
                assert one == other, f"{what}, in which a look at a clock takes {pace} seconds, {other}"


def check_order_is_stable(make: Make, seeds: Sequence[int]) -> None:
    """Two calls for the same queue, with nothing computed in between, must return the same order."""
    for seed in seeds:
        play = Play(make(CONTEXTS[1]), seed)
        for number, _ in enumerate(play.steps(30)):
            if requests := play.requests:
                first, second = ([ticket.id for ticket in play.policy.order(requests)] for _ in range(2))
                assert first == second, f"seed {seed}, step {number}: the order {first}, in a second call {second}"


def check_displacement_ends(make: Make, seeds: Sequence[int]) -> None:
    """If no request computes anything, running requests may displace each other only a finite number of times: no set
    of running requests may repeat."""
    for seed in seeds:
        generator = random.Random(seed)
        tickets = [_ticket(generator, number) for number in range(12)]
        policy = make(CONTEXTS[0])
        for slots in (1, 2, 5):
            running, waiting = tickets[:slots], deque(tickets[slots:])
            list(policy.order(tuple(waiting)))
            seen, idle = {frozenset(ticket.id for ticket in running)}, 0
            while idle <= len(waiting):
                newcomer = waiting.popleft()
                by_arrival = tuple(sorted(running, key=lambda ticket: ticket.arrival))
                out = policy.displaced(by_arrival, newcomer)
                if out is None:
                    waiting.append(newcomer)
                    idle += 1
                    continue
                running = [newcomer if ticket is out else ticket for ticket in running]
                waiting.append(out)
                idle = 0
                now = frozenset(ticket.id for ticket in running)
                what = f"{newcomer} displaced {out}, and {sorted(now)} run again"
                assert now not in seen, f"seed {seed}, {slots} slots: {what}, as before: an endless loop"
                seen.add(now)


def check_no_starvation(make: Make) -> None:
    """Among requests that differ only in arrival, a waiting one must be served although later ones keep arriving."""
    for tenants in (("",), ("a", "b")):
        policy = make(PolicyContext(step_tokens=8))
        queue = [Ticket(f"{i}", i, tenants[i % len(tenants)], 0, 8, 16) for i in range(20)]
        first = set(queue)
        for arrival in range(20, 400):
            ticket = next(iter(policy.order(tuple(queue))), queue[0])
            policy.computed(ticket, 8)
            queue.remove(ticket)
            first.discard(ticket)
            queue.append(Ticket(f"{arrival}", arrival, tenants[arrival % len(tenants)], 0, 8, 16))
        left = ", ".join(sorted(ticket.id for ticket in first))
        assert not first, f"380 others of tenants {tenants} were served, but of the first 20 still wait: {left}"


def check_tickets_go(make: Make) -> None:
    """Of requests that have finished, only those in the last calls may still be referenced."""
    policy, keep = make(CONTEXTS[0]), 8
    for start in range(0, 2000, keep):
        queue = tuple(Ticket(f"{i}", i, f"t{i}", i % 3, 4, 8) for i in range(start, start + keep))
        for ticket in policy.order(queue):
            policy.computed(ticket, 4)
        policy.victim(queue)
        policy.displaced(queue[1:], queue[0])
    policy.order(())
    del queue, ticket
    gc.collect()
    held = sum(type(thing) is Ticket and thing.tenant == f"t{thing.arrival}" for thing in gc.get_objects())
    assert held <= 4 * keep, f"it still holds {held} of 2000 requests, of which the last {keep} were in the queue"


def check_linear(make: Make) -> None:
    """Four times as many waiting requests must take about four times the lines of Python, for a new queue and for the
    same: requests of all kinds, of as many tenants, and all alike."""
    for context in CONTEXTS[:2]:
        for kind in ("of all kinds", "each of a tenant of its own", "all alike"):
            short = counted_lines(partial(_ask, make(context), _queue(100, kind)))
            limit = 6 * short + 2000
            long = counted_lines(partial(_ask, make(context), _queue(400, kind)), limit)
            what = f"{short} lines of code for 100 waiting requests, {kind}, become more than {limit} for 400"
            assert long <= limit, f"{what}, where each look at a request and each comparison with one is a line"
        for kind in ("of all kinds", "all alike"):
            short = counted_lines(partial(_read, make(context), _queue(100, kind)))
            limit = 6 * short + 2000
            long = counted_lines(partial(_read, make(context), _queue(400, kind)), limit)
            what = f"{short} lines of code to read an order of 100 requests, {kind}, become more than {limit}"
            assert long <= limit, f"{what} for 400, where each comparison with a request or its numbers is a line"


def check_context(spec: PolicySpec, make: Make, seeds: Sequence[int]) -> None:
    """The weights are those of the configuration, which others read, too."""
    for context in deepcopy(CONTEXTS):
        before = dict(context.weights)
        for _ in Play(load_object(spec.implementation)(context), seeds[0]).steps(40):
            pass
        assert context.weights == before, f"the weights that it was made with were {before}, and are {context.weights}"


def check_settings(make: Make, seeds: Sequence[int]) -> None:
    """Among it random generators, from which others draw."""
    for context in CONTEXTS:
        with leaving_settings():
            for _ in Play(make(context), seeds[0]).steps(40):
                pass


def _ask(policy: SchedulingPolicy, queue: tuple[Ticket, ...]) -> None:
    for _ in range(4):
        for ticket in islice(policy.order(queue), 32):
            policy.computed(ticket, 16)
        running = queue[:-1]
        policy.victim(running)
        policy.displaced(running, queue[-1])


def _read(policy: SchedulingPolicy, queue: tuple[Ticket, ...]) -> None:
    for ticket in policy.order(queue):
        policy.computed(ticket, 16)


def _queue(size: int, kind: str) -> tuple[Ticket, ...]:
    generator = random.Random(size)
    return tuple(
        _watched(_ticket(generator, number), tenant=f"tenant-{number}" if kind.startswith("each") else None)
        if kind != "all alike"
        else _watched(Ticket(f"r{number}", number, "a", 0, 40, 80))
        for number in range(size)
    )


def _watched(ticket: Ticket, tenant: str | None = None) -> Watched:
    name = Name(ticket.tenant if tenant is None else tenant)
    counts = (Number(each) for each in (ticket.priority, ticket.num_prompt_tokens, ticket.max_tokens))
    return Watched(Name(ticket.id), Number(ticket.arrival), name, *counts)


def _ticket(generator: random.Random, number: int) -> Ticket:
    prompt = generator.randint(1, 200)
    length = prompt + generator.randint(1, 200)
    return Ticket(f"r{number}", number, generator.choice(TENANTS), generator.choice(PRIORITIES), prompt, length)


class Play:
    """Drives a policy with requests that arrive, run and finish at random, as the scheduler does, and checks its
    answers.

    There are few slots and cache tokens, so that all its methods are called.
    """

    budgets = (1, 7, 64, 64)
    """Tokens of a step."""

    def __init__(self, policy: SchedulingPolicy, seed: int, slots: int = 4, capacity: int = 150) -> None:
        self.policy = policy
        self.requests: tuple[Ticket, ...] = ()
        self._random = random.Random(seed)
        self._seed, self._slots, self._capacity = seed, slots, capacity
        self._running: dict[Ticket, int] = {}
        """Computed tokens of each request."""
        self._waiting: list[Ticket] = []
        self._number = 0

    def steps(self, count: int) -> Iterator[list[str]]:
        """The answers in each step."""
        for _ in range(count):
            yield self._step()

    def _step(self) -> list[str]:
        self._arrive()
        answers: list[str] = []
        self._abort()
        self._line_up()
        self._peek(answers)
        budget = self._random.choice(self.budgets)
        left = set(self.requests)
        for ticket in self.policy.order(self.requests) if self.requests else ():
            assert isinstance(ticket, Ticket), self._wrong("order()", ticket, self.requests)
            assert ticket in left, self._wrong("order()", ticket, left)
            left.remove(ticket)
            answers.append(ticket.id)
            if ticket not in self._running and not self._admit(ticket, answers):
                break
            share = min(budget, max(1, ticket.num_prompt_tokens - self._running[ticket]))
            self._compute(ticket, share)
            budget -= share
            if budget <= 0:
                break
        self._finish(answers)
        return answers

    def _arrive(self) -> None:
        for _ in range(self._random.choice((0, 0, 1, 1, 2, 9))):
            self._waiting.append(_ticket(self._random, self._number))
            self._number += 1

    def _abort(self) -> None:
        """A client leaves while its request waits."""
        if self._waiting and self._random.random() < 0.1:
            self._waiting.remove(self._random.choice(self._waiting))

    def _line_up(self) -> None:
        """Those in prefill, then those that wait, each by arrival: the same object as long as it is the same. One that
        has changed may lie where the last one was."""
        now = [ticket for ticket in self._by_arrival() if self._running[ticket] < ticket.num_prompt_tokens]
        now += sorted(self._waiting, key=lambda ticket: ticket.arrival)
        if now != list(self.requests):
            self.requests = ()
            self.requests = tuple(now)

    def _peek(self, answers: list[str]) -> None:
        """Where no slot is free, the scheduler asks who of those that wait is the first, and no more."""
        waiting = tuple([ticket for ticket in self.requests if ticket not in self._running])
        waiting = self.requests if waiting == self.requests else waiting
        if waiting and len(self._running) >= self._slots and self._random.random() < 0.5:
            first = next(iter(self.policy.order(waiting)), None)
            assert first is None or first in waiting, self._wrong("order()", first, waiting)
            answers.append(f"?{first.id if first else None}")

    def _admit(self, newcomer: Ticket, answers: list[str]) -> bool:
        running = self._by_arrival()
        if len(running) >= self._slots:
            out = self.policy.displaced(running, newcomer)
            if out is None:
                return False
            assert out in running, self._wrong("displaced()", out, running)
            answers.append(f"-{out.id}")
            self._preempt(out)
        self._waiting.remove(newcomer)
        self._running[newcomer] = 0
        return True

    def _compute(self, ticket: Ticket, tokens: int) -> None:
        self.policy.computed(ticket, tokens)
        self._running[ticket] += tokens

    def _finish(self, answers: list[str]) -> None:
        for ticket, done in list(self._running.items()):
            if done >= ticket.num_prompt_tokens and self._decodes(ticket):
                self._compute(ticket, 1)
            if done > ticket.max_tokens or self._random.random() < 0.1:
                del self._running[ticket]
        while sum(self._running.values()) > self._capacity and len(self._running) > 1:
            running = self._by_arrival()
            out = self.policy.victim(running)
            assert out in running, self._wrong("victim()", out, running)
            answers.append(f"!{out.id}")
            self._preempt(out)

    def _decodes(self, ticket: Ticket) -> bool:
        """Whether a request in decode has its turn in this step."""
        return True

    def _preempt(self, ticket: Ticket) -> None:
        del self._running[ticket]
        self._waiting.append(ticket)

    def _by_arrival(self) -> tuple[Ticket, ...]:
        return tuple(sorted(self._running, key=lambda ticket: ticket.arrival))

    def _wrong(self, method: str, answer: object, asked: object) -> str:
        ids = [ticket.id for ticket in asked]  # type: ignore[attr-defined]
        return f"seed {self._seed}: {method} returned {getattr(answer, 'id', answer)!r} for {ids}"
