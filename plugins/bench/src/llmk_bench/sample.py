"""What became of one request."""

from __future__ import annotations

from itertools import pairwise

import msgspec


class Sample(msgspec.Struct):
    """Times are seconds since the start of the load.

    Attributes:

    due, sent: when the request should have been sent, and when it was. arrivals: when each event with output came.
    wanted, tokens: tokens of the answer that were requested, and that the server reports; where it reports none, the
    events. turn: its place in its conversation, from 0. special: it is the long prompt among the others. error: why
    there is no answer; empty: there is one.
    """

    due: float
    wanted: int
    turn: int = 0
    special: bool = False
    sent: float = 0.0
    arrivals: list[float] = []
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds until the first output."""
        return self.arrivals[0] - self.due

    @property
    def e2e(self) -> float:
        """Seconds until the last output."""
        return self.arrivals[-1] - self.due

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between events, of which each may have several tokens."""
        return [after - before for before, after in pairwise(self.arrivals)]
