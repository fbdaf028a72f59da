"""Drafts by context models of several orders (prediction by partial matching, without blending): of the longest context
that is sure enough of what follows it, what followed it most often."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import Speculator, SpeculatorContext

from .swift_options import Options


class Backoff(Speculator):
    """Follows ``llmk.api.Speculator``. A request is drafted for by its own text alone."""

    def __init__(self, context: SpeculatorContext) -> None:
        self._options = Options.model_validate(dict(context.options))
        self._vocab_size = context.vocab_size
        self._histories: dict[str, _History] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Drafts are themselves context of those behind them, but are not counted."""
        history = self._histories.setdefault(request, _History(self._options, self._vocab_size))
        history.read(tokens)
        context = list(tokens[-self._options.backoff_longest :])
        drafts: list[int] = []
        while len(drafts) < most:
            draft = history.after(context)
            if draft is None:
                break
            drafts.append(draft)
            context = [*context, draft][-self._options.backoff_longest :]
        return drafts

    def leave(self, request: str) -> None:
        """Drops what was counted of the request."""
        self._histories.pop(request, None)


class _History:
    """What followed each context of one request. Embeddings in place of tokens have one id and are unlike each other,
    so no context has one, and none is drafted."""

    def __init__(self, options: Options, vocab_size: int) -> None:
        self._longest, self._shortest = options.backoff_longest, options.backoff_shortest
        self._share = options.backoff_share
        self._vocab_size = vocab_size
        self._num_read = 0
        self._followers: dict[tuple[int, ...], _Followers] = {}

    def read(self, tokens: Sequence[int]) -> None:
        """Counts the tokens that came since the last call."""
        for at in range(self._num_read, len(tokens)):
            if tokens[at] >= self._vocab_size:
                continue
            for length in range(self._shortest, self._longest + 1):
                context = tuple(tokens[max(at - length, 0) : at])
                if len(context) < length or self._vocab_size in context:
                    break
                self._followers.setdefault(context, _Followers()).count(tokens[at])
        self._num_read = len(tokens)

    def after(self, context: Sequence[int]) -> int | None:
        """What followed the longest end of ``context`` that is sure; ``None`` if none is."""
        for length in range(min(self._longest, len(context)), self._shortest - 1, -1):
            followers = self._followers.get(tuple(context[-length:]))
            if followers is not None and followers.share >= self._share:
                return followers.best
        return None


class _Followers:
    """How often each token followed a context. ``best`` is the one that did most often, of several the one that did
    last."""

    __slots__ = ("_counts", "_total", "best")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0
        self.best = -1

    @property
    def share(self) -> float:
        """The part of all that is ``best``."""
        return self._counts[self.best] / self._total

    def count(self, token: int) -> None:
        """Counts ``token`` once more."""
        self._total += 1
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._counts[token] >= self._counts.get(self.best, 0):
            self.best = token
