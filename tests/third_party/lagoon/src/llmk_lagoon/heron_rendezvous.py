"""Weighted rendezvous hashing with bounded loads.

What belongs together goes to one replica, without a table of what went where: each replica has a score for a key, a
hash of both, and the highest wins (Thaler and Ravishankar, 1998). So front ends agree without talking to each other,
and if a replica goes, only its keys move. A replica that has its bound of work passes a key on to the next of the key's
own order, so that a popular key is spread over as many replicas as it needs, always the same ones (Mirrokni et al.,
2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext

OPENING = 4
"""Requests without a session go together if so many blocks of their prompts are the same, or all of the shorter."""
AHEAD = 4
"""How many requests like this one a replica may be above its bound: without it, two requests could never meet."""
REMEMBERED = 1 << 22
"""Tokens per replica, after which what was given counts half."""


def encoded(name: str) -> bytes:
    """A name that may be any text, also one that is not valid Unicode."""
    return name.encode("utf-8", "surrogatepass")


def key_of(request: RoutedRequest) -> bytes:
    """A hash of what requests have in common that are to meet: their session, the opening of their prompts, or their
    tenant. Tenants have caches of their own, so that sessions of two are never one."""
    if request.session:
        parts = ("session", request.tenant, request.session)
    elif request.blocks:
        parts = ("blocks", request.tenant, str(request.blocks[min(len(request.blocks), OPENING) - 1]))
    else:
        parts = ("tenant", request.tenant)
    return blake2b(b"".join(b"%d:%s," % (len(part), part) for part in map(encoded, parts))).digest()


def share_of(replica: ReplicaState) -> float:
    """The share of a replica in the work: half of it if its steps take twice as long. It is a power of two, because
    small changes of speed should move no keys."""
    return 2.0 ** -round(math.log2(min(max(replica.slowness, 1 / 16), 16)))


def score_of(key: bytes, replica: ReplicaState) -> float:
    """The score of a replica for a key. By the logarithm, a replica with twice the share has the highest score for
    twice as many keys; see Schindelhauer and Schomaker, 2005."""
    digest = blake2b(encoded(replica.id), digest_size=8, key=key).digest()
    drawn = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return share_of(replica) / max(-math.log(drawn), 1e-300)


class Rendezvous(Router):
    """Follows ``llmk.api.Router``. It keeps how many tokens each replica of the last query was given."""

    def __init__(self, context: RouterContext) -> None:
        self._most = max(context.max_load, 1.0)
        self._given: Mapping[str, float] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """The replica with the highest score of those that are within both bounds: of what they have to do now, and of
        what they were given so far, which still counts where each request ends before the next."""
        cost = request.num_prompt_tokens + request.expected_tokens
        shares = [share_of(replica) for replica in replicas]
        given = self._up_to_date(replicas, shares)
        now = self._within([replica.load for replica in replicas], shares, cost)
        ever = self._within(given, shares, cost)
        key = key_of(request)
        chosen = max(
            range(len(replicas)),
            key=lambda at: (now[at] and ever[at], ever[at], score_of(key, replicas[at]), -at),
        )
        given[chosen] += cost
        if sum(given) > REMEMBERED * len(given):
            given = [tokens / 2 for tokens in given]
        self._given = {replica.id: tokens for replica, tokens in zip(replicas, given, strict=True)}
        return replicas[chosen]

    def _within(self, work: Sequence[float], shares: Sequence[float], cost: int) -> list[bool]:
        """Which replicas are within the bound of ``work``: a multiple of what each would have if it was even."""
        even = sum(work) / sum(shares)
        return [mine <= share * even * self._most + AHEAD * cost for mine, share in zip(work, shares, strict=True)]

    def _up_to_date(self, replicas: Sequence[ReplicaState], shares: Sequence[float]) -> list[float]:
        """What the replicas were given. One that was not in the last query starts as if it had had its share, so that
        it gets no more than that from now on."""
        known = [at for at, replica in enumerate(replicas) if replica.id in self._given]
        total = sum(self._given[replicas[at].id] for at in known)
        even = total / sum(shares[at] for at in known) if known else 0.0
        return [self._given.get(one.id, share * even) for one, share in zip(replicas, shares, strict=True)]
