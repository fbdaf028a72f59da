"""A router: rendezvous hashing with bounded loads.

Each replica has a rank for each key, which is a hash of both. A request goes to the replica with the highest rank among
those that have room: whose load is at most ``max_load`` times the mean, and which got little more work than the others
so far. So the requests of a key stay together as long as the key is not too popular, and where a replica goes, its keys
alone move.

Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016; Thaler, Ravishankar, "A Name-Based
Mapping Scheme for Rendezvous", 1996.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext

AHEAD = 4
"""By how many requests of mean size a replica may be ahead of the one that got the least."""
MEMORY = 16
"""Over about how many requests the mean size is."""


def key_of(request: RoutedRequest) -> str:
    """What requests that belong together have in common: the session, or the prompt's first block; or nothing."""
    if request.session:
        return f"session {request.session}"
    return f"block {request.blocks[0]}" if request.blocks else ""


def rank(key: str, replica: str) -> bytes:
    """The rank of a replica for a key: the same in every process."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(b"\0" + replica.encode("utf-8", "surrogatepass"))
    return digest.digest()


class Ring(Router):
    """Keeps a number for each replica: how much work it was given, less what all were given."""

    def __init__(self, context: RouterContext) -> None:
        self._max_load = context.max_load
        self._given: dict[str, int] = {}
        self._size = 0.0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """By rank, of those that have room; without a key, the one that has been given the least."""
        self._meet(replicas)
        size = request.num_prompt_tokens + request.expected_tokens
        self._size += (size - self._size) / (MEMORY if self._size else 1)
        total = sum(one.load for one in replicas)
        room = [one for one in replicas if one.load * len(replicas) <= self._max_load * total]
        room = room or [min(replicas, key=lambda one: one.load)]
        floor = min(self._given[one.id] for one in room)
        even = [one for one in room if self._given[one.id] - floor <= AHEAD * self._size]
        key = key_of(request)
        if key:
            chosen = max(even, key=lambda one: rank(key, one.id))
        else:
            chosen = min(even, key=lambda one: (self._given[one.id], one.load))
        self._given[chosen.id] += chosen.new_tokens(request)
        return chosen

    def _meet(self, replicas: Sequence[ReplicaState]) -> None:
        """Forgets replicas that have gone; a new one starts at the mean of the others."""
        known = [self._given[one.id] for one in replicas if one.id in self._given]
        mean = sum(known) // len(known) if known else 0
        least = min(known, default=0)
        self._given = {one.id: self._given.get(one.id, mean) - least for one in replicas}
