"""When requests are sent."""

from __future__ import annotations

import math
from random import Random

import msgspec


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """``rate`` conversations a second, or all as soon as ``concurrency`` allows where it is infinite.

    Attributes:

    burstiness: shape of the gamma distribution of the times between arrivals: 1 is Poisson's process, less has bursts,
    more is even. concurrency: most conversations at a time; 0: any number. requests: how many conversations. think:
    mean seconds between an answer and the next turn.
    """

    requests: int
    rate: float = math.inf
    burstiness: float = 1.0
    concurrency: int = 0
    think: float = 0.0
    seed: int = 1

    def arrivals(self) -> list[float]:
        """When each conversation is due, in seconds from the start. The first is due at once."""
        if math.isinf(self.rate):
            return [0.0] * self.requests
        random, due, times = Random(f"arrivals {self.seed}"), 0.0, list[float]()
        for _ in range(self.requests):
            times.append(due)
            due += random.gammavariate(self.burstiness, 1.0 / (self.rate * self.burstiness))
        return times
