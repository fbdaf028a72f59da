"""Tiers of urgency that share the engine, in place of strict priorities.

A strict order by priority lets a stream of urgent requests stop all others. Here, a request's ``priority`` names one of
four tiers, and tiers share the engine's tokens by 8:4:2:1 as long as all of them have work. Each tier has a *pass*, as
in stride scheduling: every token that is computed for a tier adds its stride, 1, 2, 4 or 8, and the tier with the
lowest pass is next. A tier without work collects no more credit than ``Tiers`` allows.

Within a tier, short prompts come first, but age counts: each later arrival is worth ``AGE`` tokens of prompt, so a long
prompt is overtaken by a bounded number of requests. A tenant's weight divides the length of its prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

COUNT = 4
"""Tiers. Priorities from -1 to 2 have one each; those beyond are in the first and the last."""
AGE = 64
"""Tokens of prompt that each later arrival is worth."""
MARGIN = 2
"""How many tiers a running request must be below a newcomer to be preempted for it."""


def tier_of(ticket: Ticket) -> int:
    """The tier of a request, from 0, the most urgent."""
    return min(max(ticket.priority + 1, 0), COUNT - 1)


class Tiers(SchedulingPolicy):
    """Follows ``llmk.api.SchedulingPolicy``. What it keeps of the past is one number for each tier."""

    def __init__(self, context: PolicyContext) -> None:
        self._weights = context.weights
        self._step_tokens = context.step_tokens
        self._credit = context.step_tokens << COUNT
        self._passes = [0] * COUNT
        self._asked: Sequence[Ticket] = ()
        self._queues: list[list[Ticket]] = []

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """Tiers take turns by their passes, as these are now; each request is expected to cost its tier a prompt.
        The sorted tiers stay as long as the queue is the same object, which means that nothing changed."""
        if requests is not self._asked:
            self._asked = requests
            self._queues = [[] for _ in range(COUNT)]
            for ticket in requests:
                self._queues[tier_of(ticket)].append(ticket)
            for queue in self._queues:
                queue.sort(key=self._rank)
        least = self._least_pass()
        turns = [(max(self._passes[tier], least), tier) for tier, queue in enumerate(self._queues) if queue]
        return self._merged(turns, self._queues)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last in rank of the least urgent tier that runs."""
        return max(running, key=lambda ticket: (tier_of(ticket), self._rank(ticket)))

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """A request makes room for one that is more urgent by ``MARGIN`` tiers: neighbours wait for each other, since
        a preempted request is computed twice."""
        below = [ticket for ticket in running if tier_of(ticket) >= tier_of(newcomer) + MARGIN]
        return self.victim(below) if below else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """A tier pays for what is computed for it, prompts and outputs alike."""
        tier = tier_of(request)
        self._passes[tier] = max(self._passes[tier], self._least_pass()) + (num_tokens << tier)

    def _least_pass(self) -> int:
        """What the pass of a tier that had no work counts at least."""
        return max(self._passes) - self._credit

    def _rank(self, ticket: Ticket) -> tuple[float, int]:
        """The place within a tier."""
        size = ticket.num_prompt_tokens / self._weights.get(ticket.tenant, 1.0)
        return ticket.arrival * AGE + size, ticket.arrival

    def _merged(self, turns: list[tuple[int, int]], queues: Sequence[Sequence[Ticket]]) -> Iterator[Ticket]:
        """The requests of ``queues``; ``turns`` has the pass and the number of each tier that has any."""
        heapify(turns)
        places = [0] * COUNT
        while turns:
            current, tier = turns[0]
            ticket = queues[tier][places[tier]]
            yield ticket
            places[tier] += 1
            if places[tier] == len(queues[tier]):
                heappop(turns)
            else:
                tokens = max(1, min(ticket.num_prompt_tokens, self._step_tokens))
                heapreplace(turns, (current + (tokens << tier), tier))
