"""Short prompts first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket


class Shortest(SchedulingPolicy):
    """By the length of the prompt, then by arrival; when blocks run out, the longest request is preempted. What is not
    defined here goes by arrival: see ``llmk.api.SchedulingPolicy``."""

    def __init__(self, context: PolicyContext) -> None:
        self._asked: Sequence[Ticket] = ()
        self._answer: Sequence[Ticket] = ()

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """Who gets a step's tokens first. Sorted once for as long as the queue is the same object: that is so while
        nothing changed, and what is done here delays every step."""
        if requests is not self._asked:
            self._asked = requests
            self._answer = sorted(requests, key=lambda ticket: ticket.num_prompt_tokens)
        return self._answer

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """Who gives up its blocks, of requests by arrival."""
        return max(running, key=lambda ticket: (ticket.num_prompt_tokens, ticket.arrival))
