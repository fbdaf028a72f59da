"""Where the prompt's prefix is cached, as long as work stays even."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext

HALF_LIFE = 32
"""Requests per replica after which work that was given counts for half."""
SLACK = 4.0
"""By how many mean requests a replica may be ahead in any case: otherwise few requests at a time would find no replica
but idle ones."""
_SESSIONS = 1 << 14
"""Sessions that are remembered."""


class PrefixAware(Router):
    """The replica that has most of the prompt cached, among those that are not overloaded; among equals, the one that
    had the session, the one with the fewest sequences of the tenant, the one that was given least.

    A replica is overloaded if what it has still to compute, or what it was given of late, is more than ``max_load``
    times the mean of all. The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam,
    2018); what was given counts too, since replicas that are never busy at the same time share no load to compare.
    """

    def __init__(self, context: RouterContext) -> None:
        self._max_load = context.max_load
        self._given: dict[str, float] = {}
        """Tokens that each replica was given to compute, of which those of long ago count less."""
        self._mean = 0.0
        """Tokens that a request was given to compute, in the mean of the last ones."""
        self._sessions: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Where sessions were, by tenant and name; the last used are the last."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The first by that order."""
        given, tenant = self._settle(replicas), request.tenant
        session = (tenant, request.session)
        home = self._sessions.get(session, "") if request.session else ""
        busy = [one.load * one.slowness for one in replicas]
        most_given, most_busy = self._most(list(given.values())), self._most(busy)
        able = [
            one for one, load in zip(replicas, busy, strict=True) if load <= most_busy and given[one.id] <= most_given
        ]

        def order(one: ReplicaState) -> tuple[int, bool, int, float]:
            return -one.cached_tokens(request), one.id != home, one.tenants.get(tenant, 0), given[one.id]

        chosen = min(able, key=order) if able else replicas[busy.index(min(busy))]
        tokens = chosen.new_tokens(request)
        given[chosen.id] += tokens
        self._mean += (tokens - self._mean) / HALF_LIFE if self._mean else tokens
        if request.session:
            self._remember(session, chosen.id)
        return chosen

    def _most(self, loads: Sequence[float]) -> float:
        """How much one may have that is not overloaded."""
        mean = sum(loads) / len(loads)
        return max(self._max_load * mean, mean + SLACK * self._mean)

    def _settle(self, replicas: Sequence[ReplicaState]) -> dict[str, float]:
        """What each replica was given, as it counts now. A replica that is new starts with the mean: it has its share
        of what comes, and not all of it."""
        kept = 0.5 ** (1.0 / (HALF_LIFE * len(replicas)))
        known = [self._given[one.id] for one in replicas if one.id in self._given]
        mean = sum(known) / len(known) if known else 0.0
        self._given = {one.id: kept * self._given.get(one.id, mean) for one in replicas}
        return self._given

    def _remember(self, session: tuple[str, str], id: str) -> None:
        self._sessions[session] = id
        self._sessions.move_to_end(session)
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
