"""Examples for the conformance kit: the router once more, by the plainest code; every answer must be the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext
from llmk_testing.router_examples import RouterExamples


def speed(replica: ReplicaState) -> float:
    """A power of two, from a 16th to 16, the nearest to one over the slowness."""
    return 2.0 ** -round(math.log2(sorted([1 / 16, replica.slowness, 16])[1]))


def netstring(text: str) -> bytes:
    """A text with its length before it."""
    data = text.encode("utf-8", "surrogatepass")
    return str(len(data)).encode() + b":" + data + b","


def score(request: RoutedRequest, replica: ReplicaState) -> float:
    """Of a replica for what the request has in common with others."""
    if request.session:
        words = ["session", request.tenant, request.session]
    elif len(request.blocks) > 4:
        words = ["blocks", request.tenant, str(request.blocks[3])]
    elif len(request.blocks) > 0:
        words = ["blocks", request.tenant, str(request.blocks[-1])]
    else:
        words = ["tenant", request.tenant]
    key = blake2b(b"".join([netstring(word) for word in words])).digest()
    hashed = blake2b(replica.id.encode("utf-8", "surrogatepass"), digest_size=8, key=key).hexdigest()
    return speed(replica) / max(-math.log((int(hashed, 16) + 1) / (2**64 + 1)), 1e-300)


class Plain(Router):
    """Three passes: those within both bounds, those within that of what was given, and all."""

    def __init__(self, context: RouterContext) -> None:
        self._bound = context.max_load if context.max_load > 1 else 1.0
        self._tokens: dict[str, float] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The highest score of the first pass that leaves any."""
        size = request.num_prompt_tokens + request.expected_tokens
        speeds = sum(speed(one) for one in replicas)
        before = [one for one in replicas if one.id in self._tokens]
        if before:
            even = sum(self._tokens[one.id] for one in before) / sum(speed(one) for one in before)
        else:
            even = 0.0
        tokens = {one.id: self._tokens.get(one.id, speed(one) * even) for one in replicas}
        loads = sum(one.load for one in replicas) / speeds
        given = sum(tokens.values()) / speeds
        fair = [one for one in replicas if tokens[one.id] <= speed(one) * given * self._bound + 4 * size]
        free = [one for one in fair if one.load <= speed(one) * loads * self._bound + 4 * size]
        chosen = max(free or fair or replicas, key=lambda one: score(request, one))
        tokens[chosen.id] += size
        if sum(tokens.values()) > 2**22 * len(replicas):
            tokens = {id: count / 2 for id, count in tokens.items()}
        self._tokens = tokens
        return chosen


RENDEZVOUS = RouterExamples(oracle=Plain)
