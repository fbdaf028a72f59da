"""What a router is tried on: an oracle, which says which replica must be chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmk.api import Router, RouterContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterExamples:
    """``RouterSpec.examples`` names one. ``oracle`` is the router once more, by the plainest code that its rule can be
    written in: no care for time or memory. Every answer of the router must be the oracle's, which gets the same calls.
    """

    oracle: Callable[[RouterContext], Router]
