"""A speculator on the host: the token that most often followed the longest known context.

For each request and each context of up to ``order`` tokens, it counts what followed. A draft is the most frequent of
what followed the longest context that is known, of equals the latest; it is made as long as its share is ``share``.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import Speculator, SpeculatorContext
from llmk_meadow.options import read

Context = tuple[int, ...]


class Followers:
    """What followed a context: how often each token did, in the order of their last time."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0

    def add(self, token: int) -> None:
        """It followed once more."""
        self.counts[token] = self.counts.pop(token, 0) + 1
        self.total += 1

    def best(self) -> tuple[int, float]:
        """The most frequent token, of equals the latest; and its share."""
        token = max(reversed(self.counts), key=self.counts.__getitem__)
        return token, self.counts[token] / self.total


class History:
    """The contexts of one request, of its first ``length`` tokens."""

    def __init__(self, order: int, vocab_size: int) -> None:
        self._order = order
        self._vocab_size = vocab_size
        self._followers: dict[Context, Followers] = {}
        self.length = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Counts the tokens that are new. Those that stand for embeddings end all contexts."""
        for at in range(self.length, len(tokens)):
            if tokens[at] >= self._vocab_size:
                continue
            for start in range(at - 1, max(at - self._order, 0) - 1, -1):
                if tokens[start] >= self._vocab_size:
                    break
                context = tuple(tokens[start:at])
                self._followers.setdefault(context, Followers()).add(tokens[at])
        self.length = len(tokens)

    def following(self, recent: list[int]) -> tuple[int, float] | None:
        """What follows the longest context at the end of ``recent`` that is known."""
        for start in range(max(len(recent) - self._order, 0), len(recent)):
            followers = self._followers.get(tuple(recent[start:]))
            if followers is not None:
                return followers.best()
        return None


class Paths(Speculator):
    """A history for each request."""

    def __init__(self, context: SpeculatorContext) -> None:
        options = read(context.options)
        self._order, self._share = options.order, options.share
        self._vocab_size = context.vocab_size
        self._most = context.max_drafts
        self._histories: dict[str, History] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """One after the other, each draft as a part of the context of the next."""
        history = self._histories.get(request)
        if history is None:
            history = self._histories[request] = History(self._order, self._vocab_size)
        history.read(tokens)
        recent = list(tokens[-self._order :])
        drafts: list[int] = []
        while len(drafts) < min(most, self._most):
            found = history.following(recent)
            if found is None or found[1] < self._share:
                break
            drafts.append(found[0])
            recent = [*recent, found[0]][-self._order :]
        return drafts

    def leave(self, request: str) -> None:
        """Drops its history."""
        self._histories.pop(request, None)
