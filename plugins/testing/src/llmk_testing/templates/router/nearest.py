"""Where the fewest tokens are to be computed."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext


class Nearest(Router):
    """The replica that would compute the fewest tokens, with what it has to do already; of those that are ahead by no
    more than the prompt, each in turn."""

    def __init__(self, context: RouterContext) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Counts the prompt without its cached blocks, and what is left of others several times: a replica that is busy
        must save much."""
        tokens = [4 * one.load + one.new_tokens(request) for one in replicas]
        most = min(tokens) + request.num_prompt_tokens
        nearest = [one for one, count in zip(replicas, tokens, strict=True) if count <= most]
        self._turn += 1
        return nearest[self._turn % len(nearest)]
