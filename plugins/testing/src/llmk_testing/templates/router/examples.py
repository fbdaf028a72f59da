"""Examples for the conformance kit: the router once more, by the plainest code; every answer must be the same."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext
from llmk_testing.router_examples import RouterExamples


class Plain(Router):
    """By tokens, in turn."""

    def __init__(self, context: RouterContext) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Sorted by what they would compute."""
        self._turn += 1
        left = []
        for one in replicas:
            mine = 4 * one.load + one.new_tokens(request)
            if all(
                mine <= 4 * other.load + other.new_tokens(request) + request.num_prompt_tokens for other in replicas
            ):
                left.append(one)
        return left[self._turn % len(left)]


NEAREST = RouterExamples(oracle=Plain)
