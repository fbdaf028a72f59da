"""The contract of scheduling policies: the order in which requests are served, and which requests are preempted.

A policy sees requests as :class:`Ticket` objects and has no access to blocks or slots. The scheduler checks every
result. A policy that raises, or returns a request that was not among the arguments, is reported and replaced by the
built-in order: by priority, then by arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A sequence, as a policy sees it. The same object from arrival to end; compared by identity.

    ``arrival`` is the sequence's number, from 0. ``priority`` is from the request, lower first. ``tenant`` is the
    client, by API key or address. ``num_prompt_tokens`` is the length of the prompt, ``max_tokens`` the largest length
    of prompt plus output.
    """

    id: str
    arrival: int
    tenant: str
    priority: int
    num_prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The constructor argument of a policy. ``weights`` are ``[scheduler.weights]``: the share of each tenant, a
    positive number, 1 for tenants that are not listed; it must not be changed. ``step_tokens`` is the token budget of
    one step.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    step_tokens: int = 2048


class SchedulingPolicy(Protocol):
    """Orders the requests of one engine. Called between steps, from one thread, so its time delays every step.

    Methods that are not overridden order by arrival. Results must depend only on the arguments of earlier and current
    calls: not on a clock, on memory addresses, or on state shared between instances; only :meth:`computed` may change
    later results. Among requests that differ only in arrival, later ones must not overtake earlier ones for ever. There
    is no notification when a request finishes: drop state of tickets that are no longer passed, and bound what is kept
    of tenants, of which there may be millions over time. Calls must take time about linear in the number of requests,
    such as that of one sort.
    """

    def __init__(self, context: PolicyContext) -> None: ...

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """The order in which requests get slots, blocks and the rest of the step's token budget.

        ``requests`` are those in prefill, followed by those that wait, each by arrival; it is the same object as long
        as nothing changed. The result, which may be a generator, is iterated only as far as the step's budget goes, and
        :meth:`computed` is called in between; where no slot is free, the query has those alone that wait, to learn who
        is the first. Requests missing from the result come last.
        """
        return requests

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The request to preempt when blocks run out: its blocks are freed, and it is recomputed later. ``running`` is
        ordered by arrival and includes the requests that need blocks.
        """
        return running[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The running request to preempt for ``newcomer``, the first in the order, if there is no free slot or too few
        free blocks for it; ``None`` if ``newcomer`` shall wait.

        The relation must be acyclic: if A is preempted for B, B must not be preempted for A. Otherwise requests are
        recomputed over and over.
        """
        return None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Called when ``num_tokens`` of a request are scheduled in a step. Prefix-cache hits are not counted."""
        return
