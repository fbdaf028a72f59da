"""Short prompts first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmk.api import PolicyContext, SchedulingPolicy, Ticket


class Shortest(SchedulingPolicy):
    """By the length of the prompt, then by arrival; when blocks run out, the longest request is preempted. The other
    methods of ``llmk.api.SchedulingPolicy`` order by arrival."""

    def __init__(self, context: PolicyContext) -> None:
        self._asked: Sequence[Ticket] = ()
        self._answer: Sequence[Ticket] = ()

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """The order in which requests get a step's tokens. It is cached while the queue is the same object, which means
        that nothing changed, because time spent here delays every step."""
        if requests is not self._asked:
            self._asked = requests
            self._answer = sorted(requests, key=lambda ticket: ticket.num_prompt_tokens)
        return self._answer

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The request to preempt; ``running`` is in order of arrival."""
        return max(running, key=lambda ticket: (ticket.num_prompt_tokens, ticket.arrival))
