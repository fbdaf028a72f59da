"""Examples for the conformance kit: the policy once more, by the plainest code; every answer must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket
from llmk_testing.policy_examples import PolicyExamples


class Plain(SchedulingPolicy):
    """Tiers by priority, with shares."""

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        self._paid = {0: 0, 1: 0, 2: 0, 3: 0}

    def _tier(self, ticket: Ticket) -> int:
        return {-1: 0, 0: 1, 1: 2, 2: 3}.get(ticket.priority, 0 if ticket.priority < 0 else 3)

    def _rank(self, ticket: Ticket) -> tuple[float, int]:
        size = ticket.num_prompt_tokens / self._context.weights.get(ticket.tenant, 1)
        return 64 * ticket.arrival + size, ticket.arrival

    def _now(self) -> dict[int, int]:
        floor = max(self._paid.values()) - 16 * self._context.step_tokens
        return {tier: max(floor, paid) for tier, paid in self._paid.items()}

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """The tier that has paid least is next."""
        now = self._now()
        left = {tier: sorted((t for t in requests if self._tier(t) == tier), key=self._rank) for tier in range(4)}
        answer = []
        while any(left.values()):
            tier = min((tier for tier in range(4) if left[tier]), key=lambda tier: (now[tier], tier))
            ticket = left[tier].pop(0)
            now[tier] += 2**tier * max(1, min(ticket.num_prompt_tokens, self._context.step_tokens))
            answer.append(ticket)
        return iter(answer)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last of the last tier."""
        last = max(self._tier(ticket) for ticket in running)
        return sorted((ticket for ticket in running if self._tier(ticket) == last), key=self._rank)[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """Two tiers below at least."""
        victim = self.victim(running) if running else newcomer
        return victim if self._tier(victim) - self._tier(newcomer) >= 2 else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Each tier pays, by its share."""
        tier = self._tier(request)
        self._paid[tier] = self._now()[tier] + 2**tier * num_tokens


TIERS = PolicyExamples(oracle=Plain, weights=({"a": 2.0, "b": 0.25}, {"c": 10.0}))
