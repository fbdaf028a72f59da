"""Routers that make mistakes."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from defects import Defect
from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext
from llmk_testing.router_examples import RouterExamples


class Good(Router):
    """The least load; among equals, the next in turn."""

    def __init__(self, context: RouterContext) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        self._turn += 1
        least = min(one.load for one in replicas)
        left = [one for one in replicas if one.load == least]
        return left[self._turn % len(left)]


class ById(Good):
    """Returns the name, not the replica."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return super().choose(request, replicas).id  # type: ignore[return-value]


class Loyal(Good):
    """Sessions stay where they were, though that replica is gone."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._homes: dict[str, ReplicaState] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return self._homes.setdefault(request.session, super().choose(request, replicas))


class NoPrompt(Good):
    """Expects every prompt to fill a block."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return replicas[request.blocks[0] % len(replicas)]


class Encoded(Good):
    """Takes the bytes of a session's name, which half of a surrogate pair has none of."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        self._turn += len(request.session.encode())
        return super().choose(request, replicas)


class Known(Good):
    """Expects that each replica has served each tenant."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return min(replicas, key=lambda one: one.tenants[request.tenant])


class Fullest(Good):
    """Counts blocks, of which it can only be asked whether one is there."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return min(replicas, key=lambda one: len(one.blocks))  # type: ignore[arg-type]


class Booking(Good):
    """Books the request on the replica itself."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        chosen = super().choose(request, replicas)
        chosen.tenants[request.tenant] = 1  # type: ignore[index]
        return chosen


class Dice(Good):
    """Draws lots from the process's generator."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return random.choice(list(replicas))


class Hot(Good):
    """Goes where most is cached, however busy that is."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return max(replicas, key=lambda one: (one.cached_tokens(request), -one.load))


class ByTenant(Good):
    """Each tenant has a replica of its own."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        if not request.tenant:
            return super().choose(request, replicas)
        return replicas[sum(request.tenant.encode()) % len(replicas)]


class First(Good):
    """Always the first of those with the least to do."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        return min(replicas, key=lambda one: one.load)


class CatchUp(Good):
    """A replica that is new gets everything until it was given as much as the others."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._given: dict[str, int] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        chosen = min(replicas, key=lambda one: self._given.get(one.id, 0))
        kept = {one.id: self._given.get(one.id, 0) for one in replicas}
        self._given = kept | {chosen.id: kept[chosen.id] + 1}
        return chosen


class OldGuard(Good):
    """Knows the replicas that there were at first, and no others as long as one of them is there."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._known: list[str] = []

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        self._known = [one.id for one in replicas if one.id in self._known] or [one.id for one in replicas]
        return super().choose(request, [one for one in replicas if one.id in self._known])


class Hoarding(Good):
    """Remembers every session."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._homes: dict[str, str] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        chosen = super().choose(request, replicas)
        self._homes[request.session] = chosen.id
        return chosen


class Comparing(Good):
    """Compares every replica with every other."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        better = 0
        for one in replicas:
            for other in replicas:
                better += other.load < one.load
        return super().choose(request, replicas)


class Reversed(Good):
    """Takes the most loaded of two, now and then."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        chosen = super().choose(request, replicas)
        return max(replicas, key=lambda one: one.load) if self._turn % 40 == 39 else chosen


class Timed(Good):
    """Starts anew every hour."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        self._turn += int(time.monotonic() - self._started) // 3600
        return super().choose(request, replicas)

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._started = time.monotonic()


class Seeding(Good):
    """Seeds the process's generator."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        random.seed(len(replicas))
        return super().choose(request, replicas)


class Heir(Good):
    """What was a replica's goes to the first."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._known: list[str] = []

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        here = {one.id: one for one in replicas}
        self._known += [id for id in here if id not in self._known][: 64 - len(self._known)]
        self._turn += 1
        return here.get(self._known[self._turn % len(self._known)], replicas[0])


class Logging(Good):
    """Keeps a list of what it chose."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._log: list[str] = []

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        chosen = super().choose(request, replicas)
        self._log.append(chosen.id)
        return chosen


class Sweeping(Good):
    """Looks at all sessions of late in each call."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._late: dict[str, int] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        for session, turn in list(self._late.items()):
            if turn < self._turn - 2000:
                del self._late[session]
        self._late[request.session] = self._turn
        return super().choose(request, replicas)


class Forgetful(Good):
    """Forgets whose turn it is when it knows more sessions than it remembers."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._known: set[str] = set()

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        self._known.add(request.session)
        if len(self._known) > 2000:
            self._known.clear()
            self._turn = 0
        return super().choose(request, replicas)


ROUTER = RouterExamples(oracle=Good)
ANSWERS = "one of the given replicas"
EVEN, NEW = "equal replicas get equal work", "that is new gets its share"
DEFECTS = (
    Defect("forgetful", "answers change when more sessions come than are remembered", Forgetful, "those of its oracle"),
    Defect("by-id", "the replica's name is returned", ById, ANSWERS),
    Defect("loyal", "replicas that have gone are returned", Loyal, ANSWERS),
    Defect("no-prompt", "a prompt without a full block raises", NoPrompt, ANSWERS),
    Defect("encoded", "half of a surrogate pair in a session's name raises", Encoded, ANSWERS),
    Defect("known", "a tenant that is new to a replica raises", Known, ANSWERS),
    Defect("fullest", "blocks are counted, of which no number is known", Fullest, ANSWERS),
    Defect("booking", "the replicas are changed", Booking, ANSWERS),
    Defect("dice", "the replica is drawn by lot", Dice, "the same history"),
    Defect("hot", "a prompt that all have in common is served by one", Hot, EVEN),
    Defect("by-tenant", "a tenant is served by one", ByTenant, EVEN),
    Defect("first", "few requests at a time are all served by the first", First, EVEN),
    Defect("catch-up", "a replica that is new gets everything", CatchUp, NEW),
    Defect("old-guard", "a replica that is new gets nothing", OldGuard, NEW),
    Defect("timed", "answers depend on a clock", Timed, "how fast clocks go"),
    Defect("seeding", "the process's random generator is seeded", Seeding, ANSWERS),
    Defect("heir", "one replica gets what a replica that went would have got", Heir, "replicas that go"),
    Defect("logging", "something is kept of each request", Logging, "kept of each request"),
    Defect("sweeping", "a call takes time in proportion to sessions", Sweeping, "after many sessions"),
    Defect("hoarding", "sessions are held for ever", Hoarding, "is bounded"),
    Defect("comparing", "a call takes quadratic time", Comparing, "in proportion to the replicas"),
    Defect("reversed", "the busiest is chosen now and then", Reversed, "of its oracle"),
)
