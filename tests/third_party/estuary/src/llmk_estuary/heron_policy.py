"""Fair shares of recent work: each tenant's computed tokens count half after every half-life.

Unlike shares over all of a tenant's history, a tenant that was heavy an hour ago is not made to pay for it for ever,
and one that was idle can't save up. The clock is the work itself: an epoch ends whenever :data:`HALF_LIFE_STEPS` full
steps' worth of tokens have been computed, by whomever. What is known of a tenant is two integers. It is dropped once
halving has made it 0, or when :data:`MOST_TENANTS` others have had work since, so that nothing needs to be known of
requests that have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

HALF_LIFE_STEPS = 64
"""The half-life of work, in steps that are full."""
MOST_TENANTS = 2048
"""Tenants whose recent work is known at most: those that had work last. Addresses, which tenants may be, are many."""


class RecentShares(SchedulingPolicy):
    """Tenants by their recent work over their weight, the least first. Within one, by priority, then as given: those in
    prefill first, then by arrival.

    Priorities compare requests of one tenant alone: no client gets ahead of another by calling its requests urgent.
    """

    def __init__(self, context: PolicyContext) -> None:
        self._weights = context.weights
        self._half_life = HALF_LIFE_STEPS * max(1, context.step_tokens)
        self._recent: dict[str, tuple[int, int]] = {}
        """By tenant, in the order of their last work: its tokens, and the epoch in which they were that many."""
        self._epoch = 0
        self._computed = 0
        """Tokens of this epoch, of all tenants."""

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """Requests of the tenant with the least share first.

        Shares are those at the time of the call. A tenant's own is looked up again after each of its requests that is
        taken, so that those that are scheduled in between count in the same step.
        """
        queues = _by_tenant(requests)
        heap = [(self._share(tenant), queue.first, tenant) for tenant, queue in queues.items()]
        heapify(heap)
        return self._merged(heap, queues)

    def _merged(self, heap: list[tuple[float, int, str]], queues: dict[str, _Queue]) -> Iterator[Ticket]:
        while heap:
            tenant = heap[0][2]
            queue = queues[tenant]
            yield queue.take()
            if queue:
                heapreplace(heap, (self._share(tenant), queue.first, tenant))
            else:
                heappop(heap)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """Of the tenant with the greatest share, the least urgent request, and of these the last."""
        shares = {tenant: self._share(tenant) for tenant in {ticket.tenant for ticket in running}}
        most = max(shares.values())
        return _least_urgent([ticket for ticket in running if shares[ticket.tenant] == most])

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """A less urgent request of the newcomer's own tenant: the least urgent, and of these the last."""
        less_urgent = [
            ticket for ticket in running if ticket.tenant == newcomer.tenant and ticket.priority > newcomer.priority
        ]
        return _least_urgent(less_urgent) if less_urgent else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Counts the tokens for the request's tenant, and ends the epoch if they are enough."""
        tokens = self._tokens(request.tenant) + num_tokens
        self._recent.pop(request.tenant, None)
        if tokens > 0:
            self._recent[request.tenant] = tokens, self._epoch
        epochs, self._computed = divmod(self._computed + num_tokens, self._half_life)
        self._epoch += epochs
        # One tenant is added at most, and two are looked at, so that what has faded is dropped sooner than it gathers.
        for _ in range(2):
            oldest = next(iter(self._recent), None)
            if oldest is None or (self._tokens(oldest) and len(self._recent) <= MOST_TENANTS):
                break
            del self._recent[oldest]

    def _tokens(self, tenant: str) -> int:
        tokens, epoch = self._recent.get(tenant, (0, 0))
        return tokens >> (self._epoch - epoch)

    def _share(self, tenant: str) -> float:
        return share(self._tokens(tenant), tenant, self._weights)


def share(tokens: int, tenant: str, weights: Mapping[str, float]) -> float:
    """``tokens`` over the tenant's weight. A tenant whose weight is 0 gets what the others leave."""
    weight = weights.get(tenant, 1.0)
    return tokens / weight if weight > 0 else inf


class _Queue:
    """Requests of one tenant: by priority, then as they were added."""

    __slots__ = ("_at", "_lists", "_order")

    def __init__(self) -> None:
        self._lists: dict[int, list[tuple[int, Ticket]]] = {}
        self._order: list[int] | None = None
        self._at = 0

    def add(self, position: int, ticket: Ticket) -> None:
        self._lists.setdefault(ticket.priority, []).append((position, ticket))

    @property
    def first(self) -> int:
        """The position of the next request."""
        return self._current()[self._at][0]

    def take(self) -> Ticket:
        """The next request, which is removed."""
        current = self._current()
        ticket = current[self._at][1]
        self._at += 1
        if self._at == len(current):
            assert self._order is not None
            self._order.pop()
            self._at = 0
        return ticket

    def __bool__(self) -> bool:
        return self._order is None or bool(self._order)

    def _current(self) -> list[tuple[int, Ticket]]:
        if self._order is None:
            self._order = sorted(self._lists, reverse=True)
        return self._lists[self._order[-1]]


def _by_tenant(requests: Sequence[Ticket]) -> dict[str, _Queue]:
    queues: dict[str, _Queue] = {}
    for position, ticket in enumerate(requests):
        queue = queues.get(ticket.tenant)
        if queue is None:
            queue = queues[ticket.tenant] = _Queue()
        queue.add(position, ticket)
    return queues


def _least_urgent(requests: Sequence[Ticket]) -> Ticket:
    """The last of those with the greatest priority value."""
    chosen = requests[0]
    for ticket in requests:
        if ticket.priority >= chosen.priority:
            chosen = ticket
    return chosen
