"""Sequences that wait to be admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import takewhile

from llmk.api import Ticket
from llmk.engine.scheduling.sequence import Sequence, arrival_of


class WaitingQueue:
    """Waiting sequences by arrival, preempted ones included."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._tickets: tuple[Ticket, ...] | None = ()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def tickets(self) -> tuple[Ticket, ...]:
        """The sequences' tickets: the same object until the queue changes."""
        if self._tickets is None:
            self._tickets = tuple([sequence.ticket for sequence in self._sequences])
        return self._tickets

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence where it belongs."""
        insort(self._sequences, sequence, key=arrival_of)
        self._tickets = None

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence that is in the queue."""
        del self._sequences[bisect_left(self._sequences, sequence.ticket.arrival, key=arrival_of)]
        self._tickets = None

    def overdue(self, since: float) -> list[Sequence]:
        """Sequences that arrived at ``since`` or before and never ran, here or in an engine before this one."""
        late = takewhile(lambda each: each.arrived <= since, self._sequences)
        return [one for one in late if not (one.admissions or one.request.generated_token_ids)]
