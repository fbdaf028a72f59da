"""A router by rendezvous hashing (highest random weight) with bounded loads.

Front ends agree on the place of a session or a prompt without telling each other, and a replica that comes or goes
moves only what is placed on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext

OPENING = 4
"""Blocks of a prompt that decide where it goes."""

SESSIONS = 2048
"""Sessions that are remembered; of more, those that were not heard of for longest are forgotten."""

WINDOW = 1 << 20
"""Tokens given to each replica, on average, after which what was given counts half."""


def digest(*parts: bytes) -> bytes:
    """A hash of the parts, the same in every process. Each part is preceded by its length, so that no two lists of
    parts are the same bytes."""
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()


def encoded(text: str) -> bytes:
    """A name as bytes. Names are what clients send, so they may have halves of surrogate pairs."""
    return text.encode("utf-8", "surrogatepass")


def session_key(request: RoutedRequest) -> bytes | None:
    """What stands for the request's session: that of its tenant, as others may use the same name."""
    if not request.session:
        return None
    return digest(b"session", encoded(request.tenant), encoded(request.session))


def opening_key(request: RoutedRequest) -> bytes | None:
    """What stands for the start of the prompt: the hash of its first blocks. None: it is shorter than a block."""
    if not request.blocks:
        return None
    block = request.blocks[min(OPENING, len(request.blocks)) - 1]
    return digest(b"opening", str(block).encode())


class Rendezvous(Router):
    """The replica that the request's key hashes to, of those that are free.

    A replica's work is what it has still to do and what it was given lately, by how long its steps take. It is free if
    that is at most ``max_load`` times the mean, and if some are below the mean by as much, it is one of these. A
    session stays where it was last, while that is free, and else goes where it hashes to; prompts without a session go
    by their opening; what has neither goes where the least work is.
    """

    def __init__(self, context: RouterContext) -> None:
        self._max_load = max(1.0, context.max_load)
        self._given: dict[str, float] = {}
        """Tokens given to each replica that there is, by how long its steps took then."""
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        """Where sessions were last; the one that was heard of last is the last."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Places a request, and remembers that."""
        self._update(replicas)
        work = {one.id: one.slowness * one.load + self._given[one.id] for one in replicas}
        chosen = self._placed(request, self._free(replicas, work), work)
        self._book(request, chosen)
        return chosen

    def _update(self, replicas: Sequence[ReplicaState]) -> None:
        """Forgets replicas that have gone. New ones, and those that are back, count as if they had been given what
        others were on average: they get their share from now on, and not also what they missed."""
        known = [self._given[one.id] for one in replicas if one.id in self._given]
        mean = sum(known) / len(known) if known else 0.0
        self._given = {one.id: self._given.get(one.id, mean) for one in replicas}

    def _free(self, replicas: Sequence[ReplicaState], work: Mapping[str, float]) -> Sequence[ReplicaState]:
        """Those that may get a request: one at least."""
        mean = sum(work.values()) / len(replicas)
        starved = [one for one in replicas if work[one.id] * self._max_load < mean]
        # The mean of equal numbers may be rounded to less than they are: then all are free.
        return starved or [one for one in replicas if work[one.id] <= self._max_load * mean] or replicas

    def _placed(self, request: RoutedRequest, free: Sequence[ReplicaState], work: Mapping[str, float]) -> ReplicaState:
        session = session_key(request)
        if session is not None:
            home = self._homes.get(session)
            for one in free:
                if one.id == home:
                    return one
        key = session if session is not None else opening_key(request)
        if key is None:
            return min(free, key=lambda one: (work[one.id], one.tenants.get(request.tenant, 0)))
        return max(free, key=lambda one: digest(key, encoded(one.id)))

    def _book(self, request: RoutedRequest, chosen: ReplicaState) -> None:
        self._given[chosen.id] += chosen.slowness * chosen.new_tokens(request)
        if sum(self._given.values()) > WINDOW * len(self._given):
            self._given = {name: tokens / 2 for name, tokens in self._given.items()}
        session = session_key(request)
        if session is not None:
            self._homes[session] = chosen.id
            self._homes.move_to_end(session)
            if len(self._homes) > SESSIONS:
                self._homes.popitem(last=False)
