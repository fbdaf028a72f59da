"""Scheduling policies that make mistakes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from time import monotonic

from defects import Defect
from llmk.api import PolicyContext, SchedulingPolicy, Ticket


class Good(SchedulingPolicy):
    """Short prompts first, unless others have waited long."""

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return sorted(requests, key=lambda ticket: ticket.arrival + min(ticket.num_prompt_tokens, 64))


class Twice(Good):
    """Urgent requests stand in two queues."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return [*(ticket for ticket in requests if ticket.priority < 0), *requests]


class Stale(Good):
    """Goes on with the order that was asked for three steps ago."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._asked = 0
        self._kept: list[Ticket] = []

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        if self._asked % 3 == 0:
            self._kept = list(requests)
        self._asked += 1
        return self._kept


class WeightOf(Good):
    """Looks the weight up of tenants that have none."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return sorted(requests, key=lambda ticket: self._context.weights[ticket.tenant])


class VictimOfAll(Good):
    """Chooses who gives way among all that it ever saw."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._seen: dict[str, Ticket] = {}

    def computed(self, request: Ticket, num_tokens: int) -> None:
        self._seen[request.id] = request

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        return max(self._seen.values(), key=lambda ticket: ticket.num_prompt_tokens)


class Dice(Good):
    """Draws lots from the process's generator."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return random.sample(list(requests), len(requests))


class Turning(Good):
    """Counts being asked as having served."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._turn = 0

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        self._turn += 1
        at = self._turn % len(requests) if requests else 0
        return [*requests[at:], *requests[:at]]


class Pushy(Good):
    """Every newcomer displaces somebody."""

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        return running[0]


class Newest(Good):
    """Who came last is served first."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return sorted(requests, key=lambda ticket: -ticket.arrival)


class Impatient(Good):
    """Who was asked for first has waited for a second, by the clock: then who came last has its turn."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._since = monotonic()

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        late = monotonic() - self._since > 1
        self._since = monotonic()
        return list(requests)[::-1] if late else super().order(requests)


class Nightly(Good):
    """Long ones are served in even hours alone."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return sorted(requests, key=lambda ticket: ticket.num_prompt_tokens, reverse=datetime.now().hour % 2 == 0)


class Hoarding(Good):
    """Remembers every request it was told of."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._served: dict[Ticket, int] = {}

    def computed(self, request: Ticket, num_tokens: int) -> None:
        self._served[request] = self._served.get(request, 0) + num_tokens


class Comparing(Good):
    """Compares every request with every other."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        ranks = {}
        for ticket in requests:
            ranks[ticket] = 0
            for other in requests:
                ranks[ticket] += other.num_prompt_tokens < ticket.num_prompt_tokens
        return sorted(requests, key=lambda ticket: ticket.arrival + min(ranks[ticket], 64))


class Searching(Good):
    """Searches a list for each request."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        long = [ticket for ticket in requests if ticket.num_prompt_tokens > 32]
        return super().order([ticket for ticket in requests if ticket not in long] + long)


class TakingOut(Good):
    """Searches for the best of those that are left, and takes it out of a list."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        left = [(ticket.arrival + min(ticket.num_prompt_tokens, 64), at) for at, ticket in enumerate(requests)]
        while left:
            best = min(left)
            left.remove(best)
            yield requests[best[1]]


class Filling(Good):
    """Fills the weights that are missing in."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        for ticket in requests:
            self._context.weights.setdefault(ticket.tenant, 1.0)  # type: ignore[attr-defined]
        return super().order(requests)


ANSWERS = "it returns the given requests"
DEFECTS = (
    Defect("twice", "a request is named twice", Twice, ANSWERS),
    Defect("stale", "requests that have gone are named", Stale, ANSWERS),
    Defect("weight-of", "a tenant without weight raises", WeightOf, ANSWERS),
    Defect("victim-of-all", "one that doesn't run is to be preempted", VictimOfAll, ANSWERS),
    Defect("dice", "the order is drawn by lot", Dice, "the same history"),
    Defect("turning", "being asked changes the order", Turning, "asking changes no answer"),
    Defect("pushy", "displacing never ends", Pushy, "endlessly"),
    Defect("newest", "the oldest starve", Newest, "equal requests are all served"),
    Defect("hoarding", "requests are held for ever", Hoarding, "is freed with it"),
    Defect("impatient", "a clock decides whose turn it is", Impatient, "the same history"),
    Defect("nightly", "the time of day decides whose turn it is", Nightly, "the same history"),
    Defect("comparing", "a step takes quadratic time", Comparing, "in proportion to the queue"),
    Defect("searching", "a list is searched for each request", Searching, "in proportion to the queue"),
    Defect("taking-out", "the best is searched for, again and again", TakingOut, "in proportion to the queue"),
    Defect("filling", "the configuration's weights are changed", Filling, "what it is made with"),
)
