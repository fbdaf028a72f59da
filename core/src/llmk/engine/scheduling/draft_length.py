"""How many drafts are worth verifying: as many as raise tokens per second, which may be none.

A step that verifies ``d`` drafts of a request yields ``1 + a1 + a1 * a2 + … + a1 * … * ad`` tokens, where ``ai`` is how
often the draft at position ``i`` is accepted once all before it are (Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", 2023). What it costs is measured, by the number of tokens that steps compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

_WINDOW = 50.0
"""Steps after which an observation of all requests counts for 1/e."""
_REQUEST_WINDOW = 12.0
"""The same for those of one request."""
_OPTIMISM = 0.8
"""Acceptance that is assumed before anything was observed, with the weight of one step's observations."""
_TRUST = 2.0
"""Observations of a request that count as much as those of all requests."""
_MARGIN = 0.02
"""Drafts must raise tokens per second by this share."""
_FIRST_PROBE, _LAST_PROBE = 32, 1024
"""Steps without drafts before they are tried again: at first, and after many attempts that did not pay."""
_COMPARISONS = 128
"""Of so many steps with drafts, one goes without, so that its time is known too."""
_COST_WEIGHT = 0.1
"""Of the latest step in the mean time of steps of its size."""
_ODD = 3.0
"""A step that takes so many times as long as usual was held up by something else."""


def modelled_cost(num_tokens: int) -> float:
    """The relative time of a step where none of its size was measured: reading the weights takes as long as computing
    256 tokens."""
    return 1.0 + num_tokens / 256


class Acceptance:
    """How often drafts are accepted, by position, once all before them are. Recent ones count most."""

    __slots__ = ("_accepted", "_tried")

    def __init__(self) -> None:
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def observe(self, drafted: int, accepted: int, forget: float) -> None:
        """Takes note that the first ``accepted`` of ``drafted`` drafts were accepted. What was known of these positions
        loses the share ``forget`` of its weight."""
        keep = 1.0 - forget
        missing = drafted - len(self._tried)
        if missing > 0:
            self._tried += [0.0] * missing
            self._accepted += [0.0] * missing
        for at in range(min(drafted, accepted + 1)):
            self._tried[at] = self._tried[at] * keep + 1.0
            self._accepted[at] = self._accepted[at] * keep + (at < accepted)

    def fade(self, keep: float) -> None:
        """Reduces the weight of all that is known."""
        self._tried = [tried * keep for tried in self._tried]
        self._accepted = [accepted * keep for accepted in self._accepted]

    def rates(self, prior: Sequence[float], weight: float) -> list[float]:
        """The acceptance at each position of ``prior``, which has the ``weight`` of so many observations."""
        known = zip(self._tried, self._accepted, prior, strict=False)
        found = [(accepted + weight * before) / (tried + weight) for tried, accepted, before in known]
        return [*found, *prior[len(found) :]]

    def chained(self, count: int, first: float, weight: float) -> list[float]:
        """The acceptance at ``count`` positions. The prior of the first is ``first``, that of every other is the
        acceptance at the position before it."""
        found = [first]
        for at in range(count):
            tried, accepted = (self._tried[at], self._accepted[at]) if at < len(self._tried) else (0.0, 0.0)
            found.append((accepted + weight * found[-1]) / (tried + weight))
        return found[1:]


class StepCosts:
    """The time of steps by the number of tokens that they compute, from those that ran."""

    def __init__(self, modelled: Callable[[int], float] = modelled_cost) -> None:
        self._modelled = modelled
        self._sizes: dict[int, int] = {}
        """The sizes, in quarters of a power of two, that were measured, and a number of tokens of each."""
        self._seconds: dict[int, float] = {}

    def take(self, num_tokens: int, seconds: float) -> None:
        """Takes note of a step."""
        size = _size(num_tokens)
        known = self._seconds.get(size)
        self._sizes[size] = num_tokens
        self._seconds[size] = known + _COST_WEIGHT * (min(seconds, _ODD * known) - known) if known else seconds

    def lacks(self, num_tokens: int) -> bool:
        """Whether steps of other sizes were measured, and none of this one."""
        return bool(self._seconds) and _size(num_tokens) not in self._seconds

    def __call__(self, num_tokens: int) -> float:
        """Seconds, or relative time where nothing was measured. Sizes between are modelled from the nearest."""
        size = _size(num_tokens)
        if size in self._seconds or not self._seconds:
            return self._seconds.get(size, self._modelled(num_tokens))
        nearest = min(self._seconds, key=lambda known: abs(known - size))
        return self._seconds[nearest] * self._modelled(num_tokens) / self._modelled(self._sizes[nearest])


class DraftLength:
    """Chooses the number of drafts per request, up to ``most``, step by step.

    Where drafts don't pay, none are made, and they are tried again now and then: the evidence against them is forgotten
    until a few steps have renewed it.
    """

    def __init__(self, most: int, costs: StepCosts | None = None) -> None:
        self.most = most
        self.costs = costs or StepCosts()
        self._total = Acceptance()
        self._requests = 1
        self._rates: list[float] = []
        self._times: list[float] = []
        """What the next step takes by its number of drafts."""
        self._drafting = 0
        """Steps in a row with drafts, or without, as a negative number."""
        self._probe = _FIRST_PROBE

    def choose(self, batch_size: int) -> int:
        """Drafts for each of ``batch_size`` requests that decode in the next step. Called once per step."""
        self._requests = max(1, batch_size)
        if self._drafting <= -self._probe:
            self._total.fade(1 / _WINDOW)
            self._probe, self._drafting = min(2 * self._probe, _LAST_PROBE), 0
        self._rates = self._total.chained(self.most, _OPTIMISM, 1.0)
        alone = self.costs(self._requests)
        wider = [self.costs(self._requests * (1 + drafts)) for drafts in range(1, self.most + 1)]
        self._times = [alone, *(max(alone, seconds) for seconds in wider)]
        drafts = self._best(self._rates)
        if drafts and self._drafting >= _COMPARISONS:
            self._probe, self._drafting = _FIRST_PROBE, 0
            return 0
        if drafts and self.costs.lacks(self._requests):
            return 0
        self._drafting = max(0, self._drafting) + 1 if drafts else min(0, self._drafting) - 1
        return drafts

    def choose_for(self, request: Acceptance, chosen: int) -> int:
        """Drafts for one request in a step for which :meth:`choose` returned ``chosen``: at most as many, and none
        while its own are not accepted."""
        if not chosen:
            return 0
        drafts = self._best(request.rates(self._rates[:chosen], _TRUST))
        if not drafts:
            request.fade(1 - 1 / (2 * _REQUEST_WINDOW))
        return drafts

    def observe(self, drafted: int, accepted: int, request: Acceptance | None = None) -> None:
        """Takes note that the first ``accepted`` of a request's ``drafted`` drafts were accepted in a step."""
        if drafted:
            self._total.observe(drafted, accepted, 1 / (_WINDOW * self._requests))
            if request is not None:
                request.observe(drafted, accepted, 1 / _REQUEST_WINDOW)

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Takes note of what a step took that only decoded and verified drafts: ``num_tokens`` tokens, drafts
        included."""
        self.costs.take(num_tokens, seconds)

    def _best(self, rates: Sequence[float]) -> int:
        """The number of drafts, at most one per rate, with the most tokens per second; 0 where none are much better."""
        best, speed, tokens, share = 0, (1 + _MARGIN) / self._times[0], 1.0, 1.0
        for drafts, rate in enumerate(rates, 1):
            share *= rate
            tokens += share
            if tokens / self._times[drafts] > speed:
                best, speed = drafts, tokens / self._times[drafts]
        return best


def _size(num_tokens: int) -> int:
    return round(4 * log2(max(1, num_tokens)))
