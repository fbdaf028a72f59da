"""Oracles of the policies, for the conformance kit: their rules once more, by the plainest code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket
from llmk_testing.policy_examples import PolicyExamples


class PlainArrival(SchedulingPolicy):
    """By arrival; the latest gives up its blocks, and none for a newcomer."""

    def __init__(self, context: PolicyContext) -> None:
        pass

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """As given."""
        yield from list(requests)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The latest."""
        return sorted(running, key=lambda ticket: ticket.arrival)[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """None."""
        return None


class PlainPriority(PlainArrival):
    """By priority."""

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """One priority after the other, each as given."""
        for priority in sorted({ticket.priority for ticket in requests}):
            yield from [ticket for ticket in requests if ticket.priority == priority]

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The latest of the least urgent."""
        least = max(ticket.priority for ticket in running)
        return super().victim([ticket for ticket in running if ticket.priority == least])

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The victim, if it is less urgent."""
        out = self.victim(running)
        return out if out.priority > newcomer.priority else None


class PlainFair(PlainArrival):
    """Tokens by weight. Every call looks at all that was said before."""

    def __init__(self, context: PolicyContext) -> None:
        self._weights = context.weights
        self._credit = context.step_tokens
        self._used: dict[str, float] = {}
        self._last_queue: Sequence[Ticket] = ()
        self._newest = -1
        self._last_served = ""
        self._turn: Ticket | None = None

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """Again and again, the first request of the tenant that used least."""
        if requests is not self._last_queue:
            self._lift(requests)
            self._last_queue = requests
        left = list(requests)
        while left:
            firsts = [next(ticket for ticket in left if ticket.tenant == tenant) for tenant in _tenants(left)]
            least = min(self._used[first.tenant] for first in firsts)
            chosen = [first for first in firsts if self._used[first.tenant] == least]
            self._turn = sorted(chosen, key=lambda ticket: ticket.arrival)[-1]
            left.remove(self._turn)
            yield self._turn

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last of the tenant that runs most for its weight."""
        loads = {tenant: self._load(running, tenant) for tenant in _tenants(running)}
        heaviest = [ticket for ticket in running if loads[ticket.tenant] == max(loads.values())]
        return super().victim(heaviest)

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The victim, if its tenant runs no less without it than the newcomer's with the newcomer."""
        out = self.victim(running)
        if out.tenant == newcomer.tenant:
            return None
        without = self._load([ticket for ticket in running if ticket is not out], out.tenant)
        return out if without >= self._load([*running, newcomer], newcomer.tenant) else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Charges the tenant."""
        if request is self._turn:
            self._last_served = request.tenant
        self._used[request.tenant] = self._used.get(request.tenant, 0.0) + num_tokens / self._weight(request.tenant)

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def _load(self, running: Sequence[Ticket], tenant: str) -> float:
        return len([ticket for ticket in running if ticket.tenant == tenant]) / self._weight(tenant)

    def _lift(self, requests: Sequence[Ticket]) -> None:
        """Who was not in the queue may use no more than its credit at once."""
        firsts = [next(ticket for ticket in requests if ticket.tenant == tenant) for tenant in _tenants(requests)]
        stayed = [self._used.get(ticket.tenant, 0.0) for ticket in firsts if ticket.arrival <= self._newest]
        floor = min(stayed) if stayed else self._used.get(self._last_served, 0.0)
        for first in firsts:
            tenant = first.tenant
            if first.arrival > self._newest:
                credit = self._credit / self._weight(tenant)
                self._used[tenant] = max(self._used.get(tenant, 0.0), floor - credit)
            elif tenant not in self._used:
                self._used[tenant] = floor
        self._newest = max([self._newest, *(ticket.arrival for ticket in requests)])
        if len(self._used) > 1024:
            queued = _tenants(requests)
            self._used = {who: used for who, used in self._used.items() if used > floor or who in queued}


def _tenants(tickets: Sequence[Ticket]) -> list[str]:
    return list(dict.fromkeys(ticket.tenant for ticket in tickets))


FCFS = PolicyExamples(oracle=PlainArrival)
PRIORITY = PolicyExamples(oracle=PlainPriority)
FAIR = PolicyExamples(oracle=PlainFair, weights=({"t0": 0.1, "t1": 0.3, "t4": 10.0},))
