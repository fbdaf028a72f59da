"""The contract of scheduling policies: who is served first, and who gives way.

A policy sees requests as :class:`Ticket` and nothing of blocks or slots, so it can't harm them: the scheduler takes its
answers as advice and checks each. One that raises, or names a request that it was not asked about, is reported and
replaced by the built-in order: by priority, then by arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """What a policy knows of one sequence: the same object from its arrival to its end, equal to no other.

    ``arrival`` counts sequences from 0; ``priority`` is the client's wish, lower first; ``tenant`` is whose it is,
    by API key or address; ``num_prompt_tokens`` and ``max_tokens`` (prompt and output) are its
    length at first and at most.
    """

    id: str
    arrival: int
    tenant: str
    priority: int
    num_prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a policy is made with. ``weights`` are ``[scheduler.weights]``: shares by tenant, 1 where none is named.
    ``step_tokens`` are what one step may compute.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    step_tokens: int = 2048


class SchedulingPolicy(Protocol):
    """One instance serves one engine, called between steps from one thread; what it does delays every step.

    What is not overridden goes by arrival. Answers follow from what a policy was told, and from nothing else: no clock,
    no address, nothing that instances share; asking changes none. Of requests alike but for arrival, later ones don't
    pass earlier ones for ever. Nothing says that a request has ended: tickets that it is asked about no more are to be
    let go. An answer takes time in proportion to the number of requests.
    """

    def __init__(self, context: PolicyContext) -> None: ...

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """In which order requests get what is left of a step's tokens, and slots and blocks.

        ``requests`` are those whose prompt is being computed, then those that wait, by arrival; while nothing changed
        it is the same object. The answer is drawn one by one, as far as the step goes, with :meth:`computed` called in
        between. What it leaves out comes last.
        """
        return requests

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """Who gives up its blocks, to be computed again later, so that the others can go on. ``running`` is by
        arrival, and has those that need blocks too.
        """
        return running[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """Who gives way to ``newcomer``, the first of the order, for whom no slot or too few blocks are free; ``None``:
        it waits.

        Must be a relation without circles (A gives way to B, then B to A), or work is done over and over.
        """
        return None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Told of every ``num_tokens`` that are issued for a request; tokens found in the prefix cache are not."""
        return
