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
        together: sessions that start at once.
        sessions: how many start.
        turns: of a session, in the mean (geometric).
        groups: system prompts; the first are the most common (Zipf).
        shared: length of a system prompt, the same for all.
        prompt, output: of a turn (exponential, and at least 8 and 4).
        think: between an answer's end and the next turn.
        tenants: clients that sessions are of.
        named: the share of sessions that say which session they are.
        longest: tokens of a session at most; turns beyond are left out.
        forked: the share of sessions that go on from where another one was, as agents do that try several ways.
    """

    rate: float = 4.0
    together: int = 1
    sessions: int = 1000
    turns: float = 5.0
    groups: int = 20
    shared: int = 512
    prompt: float = 200.0
    output: float = 150.0
    think: float = 5.0
    tenants: int = 10
    named: float = 1.0
    longest: int = 1 << 17
    forked: float = 0.0


KINDS = {
    "chat": Shape(),
    "short": Shape(turns=2.0, groups=50, shared=64, prompt=30.0, output=40.0, think=2.0, tenants=100),
    "tenants": Shape(groups=400, shared=768, tenants=400, turns=3.0),
    "one_prefix": Shape(groups=1, shared=3072, prompt=60.0, output=80.0, turns=2.0),
    "unnamed": Shape(named=0.0, turns=8.0, think=20.0),
    "forks": Shape(forked=0.6, named=0.5, turns=4.0, prompt=400.0, output=80.0, think=1.0),
    "bursts": Shape(together=64, groups=8),
    "batch": Shape(turns=1.0, groups=200, shared=1536, prompt=400.0, output=60.0, together=16),
}
"""Traffic of several kinds, by name; the first is what routers were tried with when they were written."""


@dataclass(slots=True, eq=False)
class Session:
    """A conversation: each prompt is all that was said before, and something new. ``name`` is what it calls itself, if
    anything. Its first ``shared`` tokens are those of its group, or of ``parent``."""

    number: int
    group: int
    tenant: str
    name: str
    turns: list[tuple[int, int, float]]
    """Of each: new tokens of the prompt, tokens of the output, and the time until it is sent, once the one before it
    has ended."""
    shared: int
    length: int
    parent: Session | None = None

    def blocks(self, length: int) -> list[int]:
        """Hashes of the full blocks of its first ``length`` tokens."""
        if self.parent is not None:
            first = self.parent.blocks(min(self.shared, length))
        else:
            first = [hash((self.group, place)) for place in range(min(self.shared, length) // BLOCK)]
        return first + [hash((-1, self.number, place)) for place in range(self.shared // BLOCK, length // BLOCK)]

    def forked_after(self, turn: int) -> int:
        """Tokens that it has after so many of its turns."""
        return self.shared + sum(new + output for new, output, _ in self.turns[:turn])


def sessions(shape: Shape, seed: int = 0) -> Iterator[tuple[float, Session]]:
    """When each starts, and what it will say."""
    random, time = Random(seed), 0.0
    weights = [1.0 / (place + 1) for place in range(shape.groups)]
    known: list[Session] = []
    for number in range(shape.sessions):
        if number % shape.together == 0:
            time += random.expovariate(shape.rate / shape.together)
        turns = list[tuple[int, int, float]]()
        length = shape.shared
        while not turns or random.random() > 1.0 / shape.turns:
            think = random.expovariate(1.0 / shape.think) if turns and shape.think else 0.0
            prompt, output = random.expovariate(1.0 / shape.prompt), random.expovariate(1.0 / shape.output)
            turn = max(8, round(prompt)), max(4, round(output)), think
            length += turn[0] + turn[1]
            if turns and length > shape.longest:
                break
            turns.append(turn)
        (group,) = random.choices(range(shape.groups), weights)
        tenant = f"tenant-{random.randrange(shape.tenants)}"
        name = str(number) if random.random() < shape.named else ""
        session = Session(number, group, tenant, name, turns, shape.shared, shape.shared)
        if known and random.random() < shape.forked:
            parent = random.choice(known[-64:])
            length = parent.forked_after(random.randint(1, len(parent.turns))) // BLOCK * BLOCK
            session.parent, session.shared, session.length = parent, length, length
        known.append(session)
        yield time, session
