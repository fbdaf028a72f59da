"""The number of drafts follows their acceptance and what wider steps cost: simulated steps of requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from llmk.engine.scheduling.draft_length import Acceptance, DraftLength, StepCosts

MOST = 8


def bound_by_memory(num_tokens: int) -> float:
    """Milliseconds of a step on a device that computes 300 tokens while it reads the weights."""
    return 8.0 * max(1.0, num_tokens / 300) + 0.002 * num_tokens


def bound_by_arithmetic(num_tokens: int) -> float:
    """Milliseconds of a step that computes its tokens one after the other."""
    return 2.0 + 2.0 * num_tokens


@dataclass
class Run:
    """Steps of ``requests`` requests whose drafts are accepted with the probability that ``rate`` gives by step and
    request. Results arrive ``delay`` steps later."""

    policy: DraftLength
    cost: Callable[[int], float]
    rate: Callable[[int, int], float]
    requests: int = 1
    delay: int = 2
    seed: int = 0
    chosen: list[int] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def steps(self, count: int, own: bool = False) -> Run:
        """Runs so many steps; with ``own``, each request has its own number of drafts."""
        generator = random.Random(self.seed)
        requests = [Acceptance() for _ in range(self.requests)]
        late: list[list[tuple[int, int, Acceptance]]] = []
        for step in range(count):
            drafts = self.policy.choose(self.requests)
            self.chosen.append(drafts)
            made, results = 0, []
            for number, request in enumerate(requests):
                drafted = self.policy.choose_for(request, drafts) if own else drafts
                rate, accepted = self.rate(step, number), 0
                while accepted < drafted and generator.random() < rate:
                    accepted += 1
                results.append((drafted, accepted, request))
                made += 1 + drafted
                self.tokens += 1 + accepted
            seconds = self.cost(made) / 1000
            self.seconds += seconds
            self.policy.measure(made, seconds * generator.uniform(0.95, 1.05))
            late.append(results)
            if len(late) > self.delay:
                for drafted, accepted, request in late.pop(0):
                    self.policy.observe(drafted, accepted, request if own else None)
        return self

    @property
    def speedup(self) -> float:
        """Over the same tokens without drafts."""
        return self.tokens / self.seconds * (self.cost(self.requests) / 1000) / self.requests


def steady(rate: float) -> Callable[[int, int], float]:
    return lambda step, request: rate


def best_of(rate: float, cost: Callable[[int], float], requests: int) -> float:
    """The speedup of the best number of drafts, if that is known beforehand."""
    speeds = [
        sum(rate**n for n in range(drafts + 1)) * cost(requests) / cost(requests * (1 + drafts))
        for drafts in range(MOST + 1)
    ]
    return max(speeds)


@pytest.mark.parametrize("requests", [1, 8, 64])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("cost", [bound_by_memory, bound_by_arithmetic])
def test_it_is_near_the_best_number(cost: Callable[[int], float], rate: float, requests: int) -> None:
    run = Run(DraftLength(MOST), cost, steady(rate), requests).steps(2000)
    assert run.speedup >= 0.98
    assert run.speedup >= 0.9 * best_of(rate, cost, requests)


def test_drafts_that_are_not_accepted_are_tried_again_now_and_then() -> None:
    run = Run(DraftLength(MOST), bound_by_memory, steady(0.0), 64).steps(3000)
    assert sum(drafts > 0 for drafts in run.chosen) < 40
    assert any(run.chosen[-2000:])


def test_wider_steps_that_cost_too_much_are_not_tried_again() -> None:
    run = Run(DraftLength(MOST), bound_by_arithmetic, steady(0.9), 64).steps(1000)
    assert sum(drafts > 0 for drafts in run.chosen) < 10


def test_it_notices_that_drafts_are_accepted_again() -> None:
    policy = DraftLength(MOST)
    Run(policy, bound_by_memory, steady(0.0), 64).steps(1000)
    run = Run(policy, bound_by_memory, steady(0.9), 64).steps(1500)
    assert min(run.chosen[-100:-1]) >= 2 or run.chosen[-100:].count(0) <= 1
    assert run.speedup > 1.5


def test_it_notices_that_drafts_are_not_accepted_any_more() -> None:
    policy = DraftLength(MOST)
    Run(policy, bound_by_memory, steady(0.9), 128).steps(500)
    run = Run(policy, bound_by_memory, steady(0.0), 128).steps(1000)
    assert run.chosen[-300:].count(0) > 280


def test_without_measurements_the_model_decides() -> None:
    assert DraftLength(4).choose(1) == 4
    assert DraftLength(4, StepCosts(lambda tokens: float(tokens))).choose(1) == 0
    assert DraftLength(0).choose(1) == 0


def test_one_request_has_its_own_acceptance() -> None:
    """Half of the requests repeat themselves; the others' drafts cost, and are left out."""

    def rate(step: int, request: int) -> float:
        return 0.95 if request % 2 else 0.0

    shared = Run(DraftLength(MOST), bound_by_arithmetic, rate, 2).steps(1500)
    own = Run(DraftLength(MOST), bound_by_arithmetic, rate, 2).steps(1500, own=True)
    assert own.tokens / own.seconds > 1.1 * shared.tokens / shared.seconds


def test_a_request_without_drafts_of_its_own_is_tried_again() -> None:
    policy, request = DraftLength(4, StepCosts(lambda tokens: 1.0 + tokens / 4)), Acceptance()
    for _ in range(40):
        policy.observe(4, 4)
    drafts = policy.choose(1)
    assert drafts
    for _ in range(30):
        policy.observe(drafts, 0, request)
        policy.observe(4, 4)
        policy.observe(4, 4)
        policy.observe(4, 4)
    assert policy.choose_for(request, drafts) == 0
    assert any(policy.choose_for(request, drafts) for _ in range(200))
    assert policy.choose_for(request, 0) == 0


def test_a_step_that_was_held_up_changes_little() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.take(8, 0.010)
    costs.take(8, 5.0)
    assert costs(8) < 0.013


def test_sizes_that_were_not_measured_follow_the_model() -> None:
    costs = StepCosts(lambda tokens: float(tokens))
    assert costs(10) == 10
    costs.take(10, 0.5)
    assert costs(20) == pytest.approx(1.0)
    costs.take(40, 1.2)
    assert costs(38) == pytest.approx(1.2), "sizes that are nearly the same share their time"


@pytest.mark.parametrize("counts", [((3, 3), (3, 3)), ((5, 0), (1, 1)), ((2, 1), (8, 7), (1, 0))])
def test_rates_are_conditional(counts: Sequence[tuple[int, int]]) -> None:
    """Without forgetting and prior, the rate is accepted per tried."""
    seen = Acceptance()
    for drafted, accepted in counts:
        seen.observe(drafted, accepted, 0.0)
    for at, rate in enumerate(seen.rates([0.5] * 8, 1e-9)):
        tried = sum(drafted > at and accepted >= at for drafted, accepted in counts)
        hits = sum(accepted > at for _, accepted in counts)
        assert rate == pytest.approx(hits / tried if tried else 0.5, abs=1e-6)
