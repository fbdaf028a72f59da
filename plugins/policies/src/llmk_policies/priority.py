"""By the priority that clients give their requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket


class Priority(SchedulingPolicy):
    """Lower values first, then by arrival. When blocks run out, the latest of the least urgent requests is preempted;
    so it is for a more urgent newcomer if all slots or blocks are taken.
    """

    def __init__(self, context: PolicyContext) -> None:
        self._asked: Sequence[Ticket] = ()
        self._answer: Sequence[Ticket] = ()

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """By priority, then as given; sorted once for as long as the queue is the same."""
        if requests is not self._asked:
            self._asked, self._answer = requests, sorted(requests, key=_priority)
        return self._answer

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The latest of the least urgent requests."""
        return max(running, key=lambda ticket: (ticket.priority, ticket.arrival))

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The victim, if it is less urgent than the newcomer."""
        victim = self.victim(running)
        return victim if victim.priority > newcomer.priority else None


def _priority(ticket: Ticket) -> int:
    return ticket.priority
