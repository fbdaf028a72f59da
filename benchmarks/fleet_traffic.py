"""Traffic of the simulated fleet: sessions of several turns, some of whose prompts start alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What requests are like. Lengths are means, in tokens; think times in seconds.

    Attributes:
        rate: sessions that start per second, at random (Poisson).
        sessions: how many start.
        turns: of a session, in the mean (geometric).
        groups: system prompts; the first are the most common (Zipf).
        shared: length of a system prompt, the same for all.
        prompt, output: of a turn (exponential, and at least 8 and 4).
        think: between an answer's end and the next turn.
        tenants: clients that sessions are of.
    """

    rate: float = 4.0
    sessions: int = 1000
    turns: float = 5.0
    groups: int = 20
    shared: int = 512
    prompt: float = 200.0
    output: float = 150.0
    think: float = 5.0
    tenants: int = 10


@dataclass(slots=True, eq=False)
class Session:
    """A conversation: each prompt is all that was said before, and something new."""

    number: int
    group: int
    tenant: str
    turns: list[tuple[int, int, float]]
    """Of each: new tokens of the prompt, tokens of the output, and the time until it is sent, once the one before it
    has ended."""
    shared_blocks: int
    length: int

    def blocks(self, length: int) -> list[int]:
        """Hashes of the full blocks of its first ``length`` tokens."""
        shared = [hash((self.group, place)) for place in range(min(self.shared_blocks, length // BLOCK))]
        return shared + [hash((-1, self.number, place)) for place in range(self.shared_blocks, length // BLOCK)]


def sessions(shape: Shape, seed: int = 0) -> Iterator[tuple[float, Session]]:
    """When each starts, and what it will say."""
    random, time = Random(seed), 0.0
    weights = [1.0 / (place + 1) for place in range(shape.groups)]
    for number in range(shape.sessions):
        time += random.expovariate(shape.rate)
        turns = []
        while not turns or random.random() > 1.0 / shape.turns:
            think = random.expovariate(1.0 / shape.think) if turns and shape.think else 0.0
            prompt, output = random.expovariate(1.0 / shape.prompt), random.expovariate(1.0 / shape.output)
            turns.append((max(8, round(prompt)), max(4, round(output)), think))
        (group,) = random.choices(range(shape.groups), weights)
        tenant = f"tenant-{random.randrange(shape.tenants)}"
        yield time, Session(number, group, tenant, turns, shape.shared // BLOCK, shape.shared)
