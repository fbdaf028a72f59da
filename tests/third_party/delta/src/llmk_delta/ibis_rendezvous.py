"""Rendezvous hashing with bounded work.

What should meet in one replica's cache has a key: the session that the client names, else the first blocks of the
prompt. Every pair of a key and a replica has a score, a hash, and a request goes to the replica with its key's highest
score, so that a replica which comes or goes moves only the keys that are its own. As in consistent hashing with bounded
loads (arXiv:1608.01350), replicas that are ahead of the others are passed over. Two measures say who is ahead: the work
that was given lately, which is counted here, and the work that is left, which the replica reports. Requests without a
key go where least was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext

PREFIX = 4
"""Blocks of a prompt, at most, that make its key where no session is named."""
HORIZON = 1 << 16
"""Tokens per replica after which what was given counts half."""


def key_of(request: RoutedRequest) -> bytes:
    """What requests have in common that should meet; empty: nothing."""
    if request.session:
        return b"session:" + request.session.encode("utf-8", "surrogatepass")
    if request.blocks:
        last = min(PREFIX, len(request.blocks)) - 1
        return b"prefix:%d" % request.blocks[last]
    return b""


def score(key: bytes, replica: ReplicaState) -> bytes:
    """How much a key wants to be at a replica."""
    name = replica.id.encode("utf-8", "surrogatepass")
    return blake2b(key + b"@" + name, digest_size=8).digest()


class Rendezvous(Router):
    """Follows ``llmk.api.Router``. It keeps one number for each replica of the last call, and nothing of requests."""

    def __init__(self, context: RouterContext) -> None:
        self._max_load = max(1.0, context.max_load)
        self._given: dict[str, int] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The replica of the highest score among those that are not ahead; without a key, the one with least work."""
        self._admit(replicas)
        key = key_of(request)
        allowed = self._allowed(replicas) if key else []
        if allowed:
            chosen = max(allowed, key=lambda one: score(key, one))
        else:
            chosen = min(replicas, key=lambda one: (self._given[one.id], one.load))
        self._charge(chosen, request)
        return chosen

    def _admit(self, replicas: Sequence[ReplicaState]) -> None:
        """Forgets replicas that went. One that is new, or back, starts in the middle: neither does it get all that
        others had before it came, nor does it wait until they have as much again."""
        known = {one.id: self._given[one.id] for one in replicas if one.id in self._given}
        mean = sum(known.values()) // len(known) if known else 0
        self._given = {one.id: known.get(one.id, mean) for one in replicas}

    def _allowed(self, replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
        """The replicas that are not ahead of the mean by more than ``max_load`` allows, by either measure."""
        count = len(replicas)
        most_given = self._max_load * sum(self._given.values())
        most_load = self._max_load * sum(one.load for one in replicas)
        return [one for one in replicas if self._given[one.id] * count <= most_given and one.load * count <= most_load]

    def _charge(self, chosen: ReplicaState, request: RoutedRequest) -> None:
        """Counts what was given: what is to be computed, which takes a slow replica longer."""
        self._given[chosen.id] += max(1, round(chosen.new_tokens(request) * chosen.slowness))
        if sum(self._given.values()) > HORIZON * len(self._given):
            self._given = {name: tokens // 2 for name, tokens in self._given.items()}
