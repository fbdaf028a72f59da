"""Drafts what followed the last two tokens of a request earlier in it."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import Speculator, SpeculatorContext


class Pairs(Speculator):
    """Follows ``llmk.api.Speculator``: one instance drafts for all requests of an engine, between its steps, so time
    spent here delays every step. Drafts can't change output: those that the model would not have sampled are dropped.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        self._vocab_size = context.vocab_size
        self._known: dict[str, tuple[int, dict[tuple[int, int], int]]] = {}
        """By request: how many tokens have been read, and the token that followed each pair last."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most ``most`` drafts. Only tokens that came since the last call are read."""
        read, followed = self._known.get(request, (2, {}))
        for at in range(read, len(tokens)):
            followed[tokens[at - 2], tokens[at - 1]] = tokens[at]
        self._known[request] = max(read, len(tokens)), followed
        drafts: list[int] = []
        last = tokens[-2:]
        while len(last) == 2 and len(drafts) < most:
            draft = followed.get((last[0], last[1]), self._vocab_size)
            if draft >= self._vocab_size:
                break
            drafts.append(draft)
            last = [last[1], draft]
        return drafts

    def leave(self, request: str) -> None:
        """The request has ended; nothing of it may be kept."""
        self._known.pop(request, None)
