"""Stride scheduling of priority classes: the urgent get more of the engine, and nobody gets nothing.

A strict order by priority starves whoever is not urgent while others are. Here, each class of priority has a share:
class ``p`` gets twice as many tokens as class ``p + 1``, if both have requests. It is stride scheduling (Waldspurger
and Weihl, 1995): a class that computes a token advances by its stride, which is large if its share is small, and the
class that has advanced the least is next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket

FIRST, LAST = -4, 4
"""The most and the least urgent class. Priorities beyond them are in these."""
NUM_CLASSES = LAST - FIRST + 1
TOKENS_PER_PLACE = 512
"""Within a class, so many tokens of a prompt cost a place in the order of arrival: short requests pass long ones, but
only as many as are in those places."""
CATCH_UP_STEPS = 4
"""How much a class may catch up that had no requests for a while, in whole steps of the last class."""
GAP = 2
"""How many classes a request must be ahead of another to take its place in the batch."""


def class_of(ticket: Ticket) -> int:
    """The number of a request's class, from 0, the most urgent."""
    return min(max(ticket.priority, FIRST), LAST) - FIRST


def stride_of(number: int) -> int:
    """How far a class advances by a token."""
    return 1 << number


def place_of(ticket: Ticket) -> tuple[int, int]:
    """What requests of one class are ordered by."""
    return ticket.arrival + ticket.num_prompt_tokens // TOKENS_PER_PLACE, ticket.arrival


class Strides(SchedulingPolicy):
    """Follows ``llmk.api.SchedulingPolicy``. It keeps a number for each class, and nothing of requests, apart from the
    queues of the last query: the same query is made again and again while nothing changes."""

    def __init__(self, context: PolicyContext) -> None:
        self._advanced = [0] * NUM_CLASSES
        self._most_behind = CATCH_UP_STEPS * context.step_tokens * stride_of(NUM_CLASSES - 1)
        self._asked: Sequence[Ticket] | None = None
        self._queues: Mapping[int, Sequence[Ticket]] = {}

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """The first of the class that has advanced the least, again and again. What the engine computes while it reads
        the order counts at once."""
        if requests is not self._asked:
            queues: dict[int, list[Ticket]] = {}
            for ticket in requests:
                queues.setdefault(class_of(ticket), []).append(ticket)
            for queue in queues.values():
                queue.sort(key=place_of)
            self._asked, self._queues = requests, queues
        return self._merged(self._queues)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """Of the class that has had most of its share, the last."""
        levels = self._levels()

        def standing(ticket: Ticket) -> tuple[int, int, tuple[int, int]]:
            number = class_of(ticket)
            return levels[number], number, place_of(ticket)

        return max(running, key=standing)

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The last of the least urgent class, if the newcomer is clearly more urgent. It depends on nothing that
        changes, so that no two requests displace each other."""
        last = max(running, key=lambda ticket: (class_of(ticket), place_of(ticket)), default=None)
        if last is None or class_of(last) - class_of(newcomer) < GAP:
            return None
        return last

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """The request's class advances."""
        number = class_of(request)
        self._advanced[number] = self._levels()[number] + num_tokens * stride_of(number)

    def _levels(self) -> Sequence[int]:
        """How far each class has advanced. One that had no requests is not so far behind that it would be alone for
        long once it has some."""
        least = max(self._advanced) - self._most_behind
        return [max(advanced, least) for advanced in self._advanced]

    def _merged(self, queues: Mapping[int, Sequence[Ticket]]) -> Iterator[Ticket]:
        """The queues as one. Of classes that have advanced equally, the more urgent is first."""
        left = {number: iter(queue) for number, queue in queues.items()}
        while left:
            levels = self._levels()
            number = min(left, key=lambda number: (levels[number], number))
            ticket = next(left[number], None)
            if ticket is None:
                del left[number]
            else:
                yield ticket
