"""Examples for the conformance kit: the policy once more, by the plainest code; every answer must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket
from llmk_testing.policy_examples import PolicyExamples


class Plain(SchedulingPolicy):
    """By the length of the prompt."""

    def __init__(self, context: PolicyContext) -> None:
        pass

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        """One length after the other, each as given."""
        for length in sorted({ticket.num_prompt_tokens for ticket in requests}):
            yield from [ticket for ticket in requests if ticket.num_prompt_tokens == length]

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The latest of the longest."""
        longest = max(ticket.num_prompt_tokens for ticket in running)
        return [ticket for ticket in running if ticket.num_prompt_tokens == longest][-1]


SHORTEST = PolicyExamples(oracle=Plain)
