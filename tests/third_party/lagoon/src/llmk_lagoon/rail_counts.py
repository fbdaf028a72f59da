"""Drafts by counts: what followed a request's last tokens most often, as in a Markov chain of variable order.

Of each context, a run of up to ``longest`` tokens, it keeps how often each token followed. The longest context that was
seen and is sure enough decides. A draft ends where it is too unlikely that all of it is right, so that little is
verified in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import Speculator, SpeculatorContext

from .rail_specs import Options


class CountingSpeculator(Speculator):
    """Follows ``llmk.api.Speculator``."""

    def __init__(self, context: SpeculatorContext) -> None:
        options = Options.model_validate(dict(context.options))
        self._longest, self._share = options.longest_context, options.least_share
        self._confidence = options.least_confidence
        self._vocab_size = context.vocab_size
        self._requests: dict[str, _Chain] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """The likeliest continuation, token by token, for as long as it is likely enough."""
        chain = self._requests.get(request)
        if chain is None:
            chain = self._requests[request] = _Chain(self._longest, self._vocab_size)
        chain.read(tokens)
        last = list(chain.last)
        drafts: list[int] = []
        confidence = 1.0
        while len(drafts) < most:
            token, share = self._next(chain, last)
            confidence *= share
            if confidence < self._confidence or not share:
                break
            drafts.append(token)
            last = [*last, token][-self._longest :]
        return drafts

    def leave(self, request: str) -> None:
        """Drops what was counted for a request."""
        self._requests.pop(request, None)

    def _next(self, chain: _Chain, last: Sequence[int]) -> tuple[int, float]:
        """A token, and its share of all that followed the longest context that says enough. No share: none does."""
        for start in range(len(last)):
            followers = chain.followers.get(tuple(last[start:]))
            if followers is not None and followers.share() >= self._share:
                return followers.best, followers.share()
        return 0, 0.0


class _Followers:
    """How often each token followed one context. ``best`` did most often; of equals, the one that came last."""

    __slots__ = ("best", "counts", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.best = self.total = 0

    def add(self, token: int) -> None:
        count = self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        if count >= self.counts.get(self.best, 0):
            self.best = token

    def share(self) -> float:
        return self.counts[self.best] / self.total


class _Chain:
    """The counts of one request."""

    def __init__(self, longest: int, vocab_size: int) -> None:
        self._longest, self._vocab_size = longest, vocab_size
        self._read = 0
        self.followers: dict[tuple[int, ...], _Followers] = {}
        self.last: list[int] = []
        """The last tokens, back to the last given embedding: those all have one id, and are not alike."""

    def read(self, tokens: Sequence[int]) -> None:
        """Counts the tokens that came since the last call."""
        for at in range(self._read, len(tokens)):
            token = tokens[at]
            if token >= self._vocab_size:
                self.last = []
                continue
            for start in range(len(self.last)):
                context = tuple(self.last[start:])
                followers = self.followers.get(context)
                if followers is None:
                    followers = self.followers[context] = _Followers()
                followers.add(token)
            self.last = [*self.last, token][-self._longest :]
        self._read = len(tokens)
