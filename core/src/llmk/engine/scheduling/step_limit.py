"""How many tokens a step may compute while several tenants are served, so that no tenant waits long for another's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmk.engine.scheduling.sequence import Sequence

RECENT = 30.0
"""Seconds for which a tenant counts as served after its last sequence: its next must not find a long step running."""
_FEW = 2
"""Tokens of a step that counts as a short one."""
_LEAST = 2
"""Further rows and tokens that a step may compute at least, no matter what was measured."""
_FIRST = 16
"""The same before anything was measured."""
_WEIGHT = 0.1
"""Of the latest step in what is remembered of all."""
_ODD = 3.0
"""A short step that takes so many times as long as usual was held up by something else."""


class StepLimit:
    """Limits steps to ``slowdown`` times what a short step takes; 0: no limit.

    It learns from the steps that run what a short one takes, and what each further row that decodes and each token of a
    prompt adds: they may differ by much, as those of a prompt are computed together.
    """

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._short = 0.0
        self._per_row = 0.0
        self._per_token = 0.0

    def take(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        """Takes note of what a step took in which so many rows decoded and so many tokens of prompts were computed."""
        short = self._short
        if rows + prompt_tokens <= _FEW:
            self._short = _blended(short, min(seconds, _ODD * short) if short else seconds)
        elif short and not prompt_tokens:
            self._per_row = _blended(self._per_row, max(0.0, seconds - short) / (rows - 1))
        elif short:
            self._take_mixed(max(0, rows - 1), prompt_tokens, max(0.0, seconds - short))

    def _take_mixed(self, rows: int, prompt_tokens: int, added: float) -> None:
        """Takes note of what further rows and tokens of prompts added together. Each is corrected by its share of what
        was expected, since for as long as there are prompts no step has rows alone."""
        of_rows, of_tokens = self._per_row * rows, self._per_token * prompt_tokens
        if not self._per_token or not of_rows:
            self._per_token = _blended(self._per_token, max(0.0, added - of_rows) / prompt_tokens)
            return
        expected = of_rows + of_tokens
        error = min(added / expected, _ODD) - 1
        self._per_row *= 1 + _WEIGHT * error * of_rows / expected
        self._per_token *= 1 + _WEIGHT * error * of_tokens / expected

    def rows(self, most: int, share: float = 1.0) -> int:
        """Rows that may decode in the next step, of ``most``: as many as take this share of the time that there is."""
        if not (self._slowdown and most):
            return most
        return self._fitting(share * self._spare, self._per_row, most - 1) + 1

    def prompt_tokens(self, rows: int, most: int) -> int:
        """Tokens of prompts that the next step may compute besides ``rows`` that decode, of ``most``."""
        if not self._slowdown:
            return most
        return self._fitting(self._spare - self._per_row * max(0, rows - 1), self._per_token, most)

    @property
    def _spare(self) -> float:
        return (self._slowdown - 1) * self._short

    def _fitting(self, seconds: float, each: float, most: int) -> int:
        if not (self._short and each):
            return min(most, _FIRST)
        return min(most, max(_LEAST, int(seconds / each)))


NO_LIMIT = StepLimit(0.0)


class Tenants:
    """The tenants that are served, or were until recently."""

    def __init__(self) -> None:
        self._served: Counter[str] = Counter()
        """How many sequences each has."""
        self._left: dict[str, float] = {}
        """When others had their last, in this order."""

    def enter(self, tenant: str) -> None:
        """Takes note of a sequence."""
        self._served[tenant] += 1
        self._left.pop(tenant, None)

    def leave(self, tenant: str, now: float) -> None:
        """Takes note that one has ended."""
        self._served[tenant] -= 1
        if not self._served[tenant]:
            del self._served[tenant]
            self._left[tenant] = now

    def several(self, now: float) -> bool:
        """Whether there is more than one."""
        while self._left and next(iter(self._left.values())) < now - RECENT:
            del self._left[next(iter(self._left))]
        return len(self._served) + len(self._left) > 1


def in_turns(ready: Iterable[Sequence]) -> list[Sequence]:
    """Tenants one after the other, and of each the sequence that was served longest ago first."""
    places: Counter[str] = Counter()
    turns: list[tuple[int, Sequence]] = []
    for sequence in sorted(ready, key=attrgetter("issued")):
        turns.append((places[sequence.ticket.tenant], sequence))
        places[sequence.ticket.tenant] += 1
    return [sequence for _, sequence in sorted(turns, key=itemgetter(0))]


def _blended(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new
