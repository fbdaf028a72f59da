"""The workloads: how many requests of which lengths arrive at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_TOKEN = 1000
"""Prompts are drawn from this token id on, past bytes and what tokenizers keep for themselves."""


@dataclass(frozen=True, slots=True)
class Workload:
    """``requests`` prompts of ``shared`` tokens that all have in common and ``unique`` ones of their own, each answered
    with ``new`` tokens; measured ``reps`` times after one that warms up."""

    requests: int
    shared: int
    unique: int
    new: int
    reps: int = 2

    @property
    def prompt(self) -> int:
        """Tokens of a prompt."""
        return self.shared + self.unique

    def prompts(self, seed: int, vocab_size: int) -> list[list[int]]:
        """Random prompts; a seed of its own for each repetition keeps them out of any cache of earlier ones."""
        rng = random.Random(seed)
        first = min(FIRST_TOKEN, vocab_size // 2)

        def draw(count: int) -> list[int]:
            return [rng.randrange(first, vocab_size) for _ in range(count)]

        prefix = draw(self.shared)
        return [prefix + draw(self.unique) for _ in range(self.requests)]


WORKLOADS = {
    "w1": Workload(1, 0, 128, 256, 3),
    "wp": Workload(16, 0, 2048, 1, 3),
    "w2": Workload(256, 0, 1024, 128),
    "w3": Workload(64, 0, 128, 512),
    "w4": Workload(128, 2048, 32, 64),
    "w5": Workload(16, 0, 8000, 128),
    "c1": Workload(1, 0, 128, 64),
    "c8": Workload(8, 0, 128, 128),
    "cp": Workload(1, 0, 1024, 1),
    **{f"d{n}": Workload(n, 0, 128, 128, 1) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)},
    **{f"p{n}": Workload(1, 0, n, 1, 3) for n in (128, 512, 2048, 31_000)},
}
"""By name; README.md says what each is meant for."""
