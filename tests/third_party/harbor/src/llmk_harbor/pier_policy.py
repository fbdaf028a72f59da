"""A scheduling policy of weighted lanes with ageing.

Requests are put into three lanes by the length of their prompts. The lanes share the computed tokens by
:data:`SHARES`, so that questions don't wait for the documents of others, and documents aren't put off for ever by
questions. Within a lane a request's *rank* decides, which is its place in the queue, moved by its priority and by its
tenant's weight: a request is overtaken by a bounded number of later ones, so it ages without a clock.

All arithmetic is on integers, so that an engine that has run for weeks orders as a fresh one does.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

SHARES = (8, 3, 1)
"""What the lanes of short, medium and long prompts get of the computed tokens while all of them want some."""

COSTS = tuple(math.lcm(*SHARES) // share for share in SHARES)
"""What a token costs in each lane: the fewer, the larger its share."""

MEDIUM_STEPS = 8
"""A prompt is short if it fits into one step, medium if it fits into so many."""

CREDIT_STEPS = 32
"""How far a lane may fall behind the leading one, in steps of the cheapest tokens: what was not used is not saved up
for longer than that."""

PATIENCE = 32
"""How many later requests may overtake one whose priority is worse by 1, or whose tenant weighs half as much."""

_LIGHTEST, _HEAVIEST = 2.0**-16, 2.0**16


def head_start(weight: float) -> int:
    """The places that a tenant of this weight is moved to the front; negative for weights below 1."""
    if not weight > 0:  # 0, and what is no number
        return round(PATIENCE * math.log2(_LIGHTEST))
    return round(PATIENCE * math.log2(min(max(weight, _LIGHTEST), _HEAVIEST)))


class LanesPolicy(SchedulingPolicy):
    """Weighted lanes by the length of prompts; within one, by rank."""

    def __init__(self, context: PolicyContext) -> None:
        self._step_tokens = max(1, context.step_tokens)
        self._head_starts = {tenant: head_start(weight) for tenant, weight in context.weights.items()}
        self._credit = CREDIT_STEPS * self._step_tokens * min(COSTS)
        self._spent = [0] * len(SHARES)

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """The best of the lane that has spent least, again and again. Read in part, it costs little more than that
        part: lanes are heaps, and what :meth:`computed` learns in between counts for the rest."""
        lanes: list[list[tuple[int, int, Ticket]]] = [[] for _ in SHARES]
        for ticket in requests:
            lanes[self._lane(ticket)].append((self._rank(ticket), ticket.arrival, ticket))
        for lane in lanes:
            heapq.heapify(lane)
        return self._merged(lanes)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The one with the worst rank, and of equal ones the latest."""
        return max(running, key=self._place)

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The worst of those that are both of a worse priority and of a worse rank. Ranks never change, so whom a
        request displaces can't displace it."""
        rank = self._rank(newcomer)
        worse = [each for each in running if each.priority > newcomer.priority and self._rank(each) > rank]
        return max(worse, key=self._place, default=None)

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Charges the request's lane, and cuts what the others have saved up."""
        lane = self._lane(request)
        self._spent[lane] += num_tokens * COSTS[lane]
        least = max(self._spent) - self._credit
        self._spent = [max(spent, least) for spent in self._spent]

    def _merged(self, lanes: list[list[tuple[int, int, Ticket]]]) -> Iterator[Ticket]:
        while waiting := [at for at, lane in enumerate(lanes) if lane]:
            best = min(waiting, key=self._spent.__getitem__)  # the first of equals: shorter prompts
            yield heapq.heappop(lanes[best])[2]

    def _lane(self, ticket: Ticket) -> int:
        if ticket.num_prompt_tokens <= self._step_tokens:
            return 0
        return 1 if ticket.num_prompt_tokens <= MEDIUM_STEPS * self._step_tokens else 2

    def _rank(self, ticket: Ticket) -> int:
        return ticket.arrival + PATIENCE * ticket.priority - self._head_starts.get(ticket.tenant, 0)

    def _place(self, ticket: Ticket) -> tuple[int, int]:
        return self._rank(ticket), ticket.arrival
