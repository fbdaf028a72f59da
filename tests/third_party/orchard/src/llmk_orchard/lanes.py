"""Two lanes: short prompts overtake long ones, but a long one has its turn after every four short ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

SHORT = 32
"""Longest prompt of the fast lane."""
TURNS = 4


class Lanes(SchedulingPolicy):
    """Long requests give up their blocks first, and at most half of those that run are long while short ones wait."""

    def __init__(self, context: PolicyContext) -> None:
        self._passed = 0
        self._offered: Ticket | None = None

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """The fast lane, with one of the slow lane after every four that were served."""
        fast = [ticket for ticket in requests if is_short(ticket)]
        slow = [ticket for ticket in requests if not is_short(ticket)]
        while fast or slow:
            lane = slow if slow and (self._passed >= TURNS or not fast) else fast
            self._offered = lane.pop(0)
            yield self._offered

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The latest long one; the latest of all if there is none."""
        slow = [ticket for ticket in running if not is_short(ticket)]
        return slow[-1] if slow else running[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """For a short newcomer, the latest long one, if more than half are long."""
        slow = [ticket for ticket in running if not is_short(ticket)]
        if is_short(newcomer) and 2 * len(slow) > len(running):
            return slow[-1]
        return None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Counts who was offered and served."""
        if request is self._offered:
            self._offered = None
            self._passed = self._passed + 1 if is_short(request) else 0


def is_short(ticket: Ticket) -> bool:
    """Whether a request is of the fast lane."""
    return ticket.num_prompt_tokens <= SHORT
