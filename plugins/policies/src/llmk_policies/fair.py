"""Weighted fair shares of computed tokens between tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

_MANY = 1024
"""Number of tenants with recorded usage above which idle ones without credit are removed."""


class Fair(SchedulingPolicy):
    """Serves the tenant with the least usage: computed tokens divided by its weight; within a tenant, by arrival.

    This is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with
    weights. A tenant that returns to the queue is lifted to the least usage of the queued tenants (or, if the queue is
    empty, to that of the tenant served last), minus the tokens of one step: so much credit may be saved for a burst,
    and no more by being idle for long.

    Slots and blocks are held for long, so fair turns are not enough: if all are taken, a newcomer displaces the last
    sequence of the tenant that runs most for its weight, if that tenant then still runs no less than the newcomer's.
    """

    def __init__(self, context: PolicyContext) -> None:
        self._weights = dict(context.weights)
        self._credit = context.step_tokens
        self._used: dict[str, float] = {}
        self._asked: Sequence[Ticket] = ()
        self._queues: dict[str, list[Ticket]] = {}
        self._newest = -1
        self._offered: Ticket | None = None
        self._served = ""

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """The next request of the tenant with the least usage so far; among equals, the tenant that joined the queue
        last, which would otherwise be after the tenant that it was lifted to.
        """
        if requests is not self._asked:
            self._enqueue(requests)
        rests = {tenant: iter(queue) for tenant, queue in self._queues.items()}
        heads = {tenant: next(rest) for tenant, rest in rests.items()}
        used = self._used
        while heads:
            tenant = min(heads, key=lambda tenant: (used[tenant], -heads[tenant].arrival))
            ticket = self._offered = heads.pop(tenant)
            yield ticket
            if (following := next(rests[tenant], None)) is not None:
                heads[tenant] = following

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last request of the tenant that runs most for its weight."""
        held = Counter(ticket.tenant for ticket in running)
        return max(running, key=lambda ticket: (held[ticket.tenant] / self._weight(ticket.tenant), ticket.arrival))

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The victim, if its tenant without it runs as much as the newcomer's with the newcomer, each for its weight.

        Such an exchange is never reversed.
        """
        mine = newcomer.tenant
        held = Counter(ticket.tenant for ticket in running)
        after = (held[mine] + 1) / self._weight(mine)
        victim = self.victim(running)
        left = (held[victim.tenant] - 1) / self._weight(victim.tenant)
        return victim if victim.tenant != mine and left >= after else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Charges the tenant."""
        tenant = request.tenant
        if request is self._offered:
            self._served = tenant
        self._used[tenant] = self._used.get(tenant, 0.0) + num_tokens / self._weights.get(tenant, 1.0)

    def _enqueue(self, requests: Sequence[Ticket]) -> None:
        """Groups requests by tenant, and lifts tenants that were not in the queue before."""
        queues: dict[str, list[Ticket]] = {}
        newest = self._newest
        for ticket in requests:
            queues.setdefault(ticket.tenant, []).append(ticket)
            newest = max(newest, ticket.arrival)
        used = self._used
        stood = [tenant for tenant, queue in queues.items() if queue[0].arrival <= self._newest]
        floor = min((used.get(tenant, 0.0) for tenant in stood), default=used.get(self._served, 0.0))
        for tenant, queue in queues.items():
            if queue[0].arrival > self._newest:
                used[tenant] = max(used.get(tenant, 0.0), floor - self._credit / self._weight(tenant))
            else:
                used.setdefault(tenant, floor)
        self._newest = newest
        if len(used) > _MANY:
            self._used = {name: use for name, use in used.items() if use > floor or name in queues}
        self._asked, self._queues = requests, queues

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
