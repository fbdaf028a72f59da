"""The built-in scheduling policy: fair between tenants, by priority within one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

_MANY = 1024
"""Tenants whose use is remembered before those that have no claim left are forgotten."""

_by_priority = attrgetter("priority")


class FairPolicy(SchedulingPolicy):
    """Serves the tenant that used least, in computed tokens over its weight; within a tenant by priority, lower first,
    then by arrival. No priority that a client chooses passes another tenant's requests.

    A tenant that comes back to the queue is lifted to the least use among those who stand in it (or, where none does,
    to that of the tenant served last): nothing is saved up by being idle, but a newcomer goes before its equals.

    Slots and blocks are held for long, so fair turns are not enough: where all are taken, a newcomer displaces the
    least urgent and last sequence of the tenant that runs most for its weight, if that tenant then still runs no less
    than the newcomer's.
    """

    def __init__(self, context: PolicyContext | None = None) -> None:
        context = context or PolicyContext()
        self._weights = dict(context.weights)
        self._used: dict[str, float] = {}
        self._ordered: Sequence[Ticket] = ()
        self._queues: dict[str, list[Ticket]] = {}
        self._newest = -1
        self._offered: Ticket | None = None
        self._served = ""

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """Always the next of the tenant that used least until then; of equal ones, the one that came to the queue last,
        which would otherwise be behind whom it was lifted to.
        """
        if requests is not self._ordered:
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
        """Of the tenant that runs most for its weight, the least urgent, and of these the last."""
        held = Counter(ticket.tenant for ticket in running)
        shares = {tenant: count / self._weight(tenant) for tenant, count in held.items()}
        return max(running, key=lambda ticket: (shares[ticket.tenant], ticket.priority, ticket.arrival))

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The victim, if its tenant without it runs as much as the newcomer's with the newcomer, each for its weight.

        What is so exchanged is never exchanged back.
        """
        mine = newcomer.tenant
        if all(ticket.tenant == mine for ticket in running):
            return None
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
        self._used[tenant] = self._used.get(tenant, 0.0) + num_tokens / self._weight(tenant)

    def _enqueue(self, requests: Sequence[Ticket]) -> None:
        """Sorts requests by tenant, and lifts tenants of which none stood in the queue before."""
        queues: dict[str, list[Ticket]] = {}
        newest = self._newest
        for ticket in requests:
            queues.setdefault(ticket.tenant, []).append(ticket)
            newest = max(newest, ticket.arrival)
        used = self._used
        new = {tenant: queue[0].arrival > self._newest for tenant, queue in queues.items()}
        stood = [tenant for tenant in queues if not new[tenant]]
        floor = min((used.get(tenant, 0.0) for tenant in stood), default=used.get(self._served, 0.0))
        for tenant, queue in queues.items():
            if new[tenant]:
                used[tenant] = max(used.get(tenant, 0.0), floor)
            else:
                used.setdefault(tenant, floor)
            queue.sort(key=_by_priority)
        self._newest = newest
        if len(used) > _MANY:
            self._used = {name: use for name, use in used.items() if use > floor or name in queues}
        self._ordered, self._queues = requests, queues

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
