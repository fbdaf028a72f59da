"""How much of prompts a step may compute, so that those that decode get their next tokens in time, and so that a long
prompt leaves something to others."""

from __future__ import annotations

import math
from collections.abc import Callable

LONG = 0.03
"""Seconds that a step may take, with part of a long prompt in it and others alongside, where no target says less: the
others wait for it, and so does a short prompt that comes meanwhile."""
ALONE = 0.1
"""The same without others: one may come meanwhile."""
FEWEST_ALONE = 512
"""Tokens of a long prompt that a step without others computes no matter what was measured: with fewer, the device would
mostly read weights."""
_LEAST = 3.0
"""Times of what decoding alone takes that a step may take no matter what the target is: with less, prompts would hardly
get on where decoding takes about as long as the target."""
_FEWEST = 16
"""Tokens of a prompt that a step computes no matter what was measured."""
_WEIGHT = 0.2
"""Of the latest step in what is remembered of all."""
_ODD = 3.0
"""A step that takes so many times as long as expected was held up by something else."""

Operations = Callable[[int, int], float]
"""What it takes to compute ``count`` tokens of a prompt behind ``start`` others, in any unit."""


def count_tokens(start: int, count: int) -> float:
    """The operations of a device for which all tokens are alike."""
    return float(count)


class PromptLimit:
    """Limits steps in which requests decode to ``target`` seconds; 0: no limit but :data:`LONG`, for long prompts.

    It learns from the steps that run what decoding alone takes, and what each operation for prompts adds. Until it
    knows both, there is no limit.
    """

    def __init__(self, target: float = 0.0, operations: Operations = count_tokens) -> None:
        self.operations = operations
        self._target = target
        self._decoding = 0.0
        self._per_operation = 0.0

    def take(self, operations: float, seconds: float) -> None:
        """Takes note of what a step took in which requests decoded, with so many operations for prompts."""
        if not operations:
            self._decoding = _blended(self._decoding, seconds)
        elif self._decoding:
            added = max(0.0, seconds - self._decoding) / operations
            self._per_operation = _blended(self._per_operation, added)

    def most(self) -> float:
        """Operations for prompts that the next step may have if requests decode in it."""
        return self._within(self._target) if self._target else math.inf

    def long(self, taken: float) -> float:
        """Operations for a long prompt in a step that has ``taken`` others for short ones: what these leave, and at
        least half of what it would get without them."""
        room = self._within(min(self._target or LONG, LONG))
        return max(room - taken, room / 2)

    def alone(self, start: int) -> float:
        """Operations for a long prompt, behind ``start`` tokens of it, in a step without others."""
        return max(self._within(ALONE), self.operations(start, FEWEST_ALONE))

    def expected(self, operations: float) -> float:
        """Seconds that a step with so many operations for prompts takes; 0: not known yet."""
        return self._decoding + self._per_operation * operations if self._per_operation else 0.0

    def _within(self, seconds: float) -> float:
        if not self._per_operation:
            return math.inf
        return (max(seconds, _LEAST * self._decoding) - self._decoding) / self._per_operation

    def tokens(self, start: int, count: int, operations: float) -> int:
        """How many of the next ``count`` tokens of a prompt behind ``start`` others take so many operations, or the
        fewest that a step computes."""
        if self.operations(start, count) <= operations:
            return count
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.operations(start, middle) <= operations else (low, middle)
        return min(count, max(low, _FEWEST))


def _blended(old: float, new: float) -> float:
    return old + _WEIGHT * (min(new, _ODD * old) - old) if old else new
