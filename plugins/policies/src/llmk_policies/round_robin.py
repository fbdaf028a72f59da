"""Each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext


class RoundRobin(Router):
    """The next one, no matter what the request is and what replicas have to do."""

    def __init__(self, context: RouterContext) -> None:
        self._turn = -1

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The one after the last, by their number now."""
        self._turn += 1
        return replicas[self._turn % len(replicas)]
