"""The router that is built in."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext


class LeastWork(Router):
    """The replica with the fewest tokens to compute, by how long its steps take; among equals, each in turn."""

    def __init__(self, context: RouterContext) -> None:
        self._turns: dict[str, int] = {}
        """When each replica was last chosen."""
        self._turn = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The one that would be done first."""
        turns = self._turns
        chosen = min(replicas, key=lambda one: (one.load * one.slowness, turns.get(one.id, 0)))
        self._turn += 1
        if chosen.id not in turns and len(turns) >= 2 * len(replicas):
            self._turns = {one.id: turns[one.id] for one in replicas if one.id in turns}
        self._turns[chosen.id] = self._turn
        return chosen
