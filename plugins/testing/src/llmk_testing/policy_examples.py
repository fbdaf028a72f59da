"""What a policy is tried on: an oracle, which says who must be chosen and who gives up blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llmk.api import PolicyContext, SchedulingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyExamples:
    """``PolicySpec.examples`` names one.

    ``oracle`` is the policy once more, by the plainest code that its rule can be written in: no caches, no care for
    time. Every answer of the policy must be the oracle's, which gets the same calls. ``weights`` are further
    ``[scheduler.weights]`` to try it with.
    """

    oracle: Callable[[PolicyContext], SchedulingPolicy]
    weights: Sequence[Mapping[str, float]] = ()
