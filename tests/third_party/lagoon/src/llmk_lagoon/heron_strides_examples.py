"""Examples for the conformance kit: the policy once more, by the plainest code; every answer must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket
from llmk_testing.policy_examples import PolicyExamples


def rank(ticket: Ticket) -> int:
    """The priority, from -4 to 4."""
    return sorted([-4, ticket.priority, 4])[1]


def place(ticket: Ticket) -> tuple[int, int]:
    """By arrival, 512 tokens of a prompt a place later."""
    return ticket.arrival + ticket.num_prompt_tokens // 512, ticket.arrival


class Plain(SchedulingPolicy):
    """Tokens, times two for each class, by class."""

    def __init__(self, context: PolicyContext) -> None:
        self._used = dict.fromkeys(range(-4, 5), 0)
        self._reach = 4 * context.step_tokens * 2**8

    def _level(self, number: int) -> int:
        return max(self._used[number], max(self._used.values()) - self._reach)

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """One by one: the class that has used the least, and its first."""
        rest = {number: sorted((t for t in requests if rank(t) == number), key=place) for number in range(-4, 5)}
        while any(rest.values()):
            number = min((number for number in rest if rest[number]), key=lambda number: (self._level(number), number))
            yield rest[number].pop(0)

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last of the class that has used the most; of several such classes, of the least urgent."""
        return sorted(running, key=lambda ticket: (self._level(rank(ticket)), rank(ticket), place(ticket)))[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """The last of the least urgent class that is two classes behind or more."""
        behind = [ticket for ticket in running if rank(ticket) >= rank(newcomer) + 2]
        return sorted(behind, key=lambda ticket: (rank(ticket), place(ticket)))[-1] if behind else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Counts."""
        self._used[rank(request)] = self._level(rank(request)) + num_tokens * 2 ** (rank(request) + 4)


STRIDES = PolicyExamples(oracle=Plain, weights=({"a": 2.0, "b": 0.5},))
