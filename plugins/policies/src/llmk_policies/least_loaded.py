"""By the number of unfinished sequences."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext


class LeastLoaded(Router):
    """The replica with the fewest sequences that run or wait; among equals, the one with the fewest of the same tenant,
    then the one that was not chosen for longest."""

    def __init__(self, context: RouterContext) -> None:
        self._turns: dict[str, int] = {}
        """When each replica was last chosen."""
        self._turn = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The first by that order."""
        tenant, turns = request.tenant, self._turns

        def order(one: ReplicaState) -> tuple[int, int, int]:
            return one.running + one.waiting, one.tenants.get(tenant, 0), turns.get(one.id, 0)

        chosen = min(replicas, key=order)
        if len(turns) > 2 * len(replicas):
            self._turns = {one.id: turns[one.id] for one in replicas if one.id in turns}
        self._turn += 1
        self._turns[chosen.id] = self._turn
        return chosen
