"""Examples for the conformance kit: the router once more, by the plainest code; every answer must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext
from llmk_testing.router_examples import RouterExamples


class Plain(Router):
    """Highest score of those that are not ahead."""

    def __init__(self, context: RouterContext) -> None:
        self._factor = max(1.0, context.max_load)
        self._given: dict[str, int] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Sorted by score, then the first that may have it."""
        old = [self._given[one.id] for one in replicas if one.id in self._given]
        start = sum(old) // len(old) if old else 0
        self._given = {one.id: self._given.get(one.id, start) for one in replicas}
        given, loads = sum(self._given.values()), sum(one.load for one in replicas)

        if request.session:
            key = b"session:" + request.session.encode("utf-8", "surrogatepass") + b"@"
        else:
            key = b"".join(b"prefix:%d@" % block for block in request.blocks[:4][-1:])
        scores = [blake2b(key + one.id.encode("utf-8", "surrogatepass"), digest_size=8).digest() for one in replicas]
        chosen = None
        for place in sorted(range(len(replicas)), key=lambda place: scores[place], reverse=True):
            one = replicas[place]
            ahead = self._given[one.id] * len(replicas) > self._factor * given
            busy = one.load * len(replicas) > self._factor * loads
            if key and chosen is None and not ahead and not busy:
                chosen = one
        if chosen is None:
            chosen = sorted(replicas, key=lambda one: (self._given[one.id], one.load))[0]

        self._given[chosen.id] += max(1, round(chosen.new_tokens(request) * chosen.slowness))
        if sum(self._given.values()) > 65536 * len(replicas):
            self._given = {name: tokens // 2 for name, tokens in self._given.items()}
        return chosen


RENDEZVOUS = RouterExamples(oracle=Plain)
