"""Drafts by majority: of all that followed a request's last tokens earlier in it, what did so most often.

What is kept is a table of contexts: for each run of ``min_order`` to ``order`` tokens, how often each token followed.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import Speculator, SpeculatorContext


class Followers:
    """What followed one context. ``best`` followed most often; of several, the one that did so last."""

    __slots__ = ("best", "counts", "total")

    def __init__(self) -> None:
        self.best = -1
        self.counts: dict[int, int] = {}
        self.total = 0

    def add(self, token: int) -> None:
        """Counts one more time that ``token`` followed."""
        self.total += 1
        count = self.counts[token] = self.counts.get(token, 0) + 1
        if count >= self.counts.get(self.best, 0):
            self.best = token


class History:
    """The table of one request. It is made of the request's tokens alone, one by one: however they are split into
    calls, it is the same."""

    __slots__ = ("last", "read", "table")

    def __init__(self) -> None:
        self.read = 0
        self.last: list[int] = []
        """The tokens since the last embedding, up to the longest context."""
        self.table: dict[tuple[int, ...], Followers] = {}


class Majority(Speculator):
    """Follows ``llmk.api.Speculator``: one instance drafts for all requests of an engine.

    Drafts are looked up one after the other, each behind those before it: the longest context that occurred decides,
    and drafting ends where none did, or where no token has ``min_share`` of what followed.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        options = context.options
        self._vocab_size = context.vocab_size
        self._min_order = int(options.get("min_order", 2))
        self._order = max(self._min_order, int(options.get("order", 5)))
        self._min_share = float(options.get("min_share", 0.5))
        self._histories: dict[str, History] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most ``most`` drafts. Only tokens that came since the last call are read."""
        history = self._histories.get(request)
        if history is None:
            history = self._histories[request] = History()
        for at in range(history.read, len(tokens)):
            self._read(history, tokens[at])
        history.read = len(tokens)
        return self._drafts(history, most)

    def leave(self, request: str) -> None:
        """The request has ended; nothing of it is kept."""
        self._histories.pop(request, None)

    def _read(self, history: History, token: int) -> None:
        """Counts ``token`` in each context that it follows. An embedding is no token: it follows nothing, and no
        context reaches over it."""
        last = history.last
        if not 0 <= token < self._vocab_size:
            last.clear()
            return
        for order in range(self._min_order, len(last) + 1):
            context = tuple(last[-order:])
            followers = history.table.get(context)
            if followers is None:
                followers = history.table[context] = Followers()
            followers.add(token)
        last.append(token)
        if len(last) > self._order:
            del last[0]

    def _drafts(self, history: History, most: int) -> list[int]:
        drafts: list[int] = []
        last = list(history.last)
        while len(drafts) < most:
            followers = self._longest(history, last)
            if followers is None or followers.counts[followers.best] < self._min_share * followers.total:
                break
            drafts.append(followers.best)
            last = [*last, followers.best][-self._order :]
        return drafts

    def _longest(self, history: History, last: list[int]) -> Followers | None:
        """What followed the longest end of ``last`` that occurred before."""
        for order in range(len(last), self._min_order - 1, -1):
            followers = history.table.get(tuple(last[-order:]))
            if followers is not None:
                return followers
        return None
