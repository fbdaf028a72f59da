"""A replica of the simulated fleet: its batch, its steps' times, and its cache."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean

from fleet_traffic import BLOCK, Session

from llmk.engine.processes.replica import Placed
from llmk.engine.wire.block_events import BlockEvent, BlockRemoved, BlockStored

FOLDER = Path(__file__).parent / "fleet_devices"
"""What was measured (``fleet_steps.py``)."""


CURVES = ("decode", "mixed", "crowded")
SPREADS = ("decode_spread", "mixed_spread")
DRAWN = 32
"""Steps of a run of many whose times are drawn, at most."""
FEW = (32, 64)
"""Up to the first, few sequences decode, from the second on, many; something of both in between."""
Curve = tuple[tuple[int, float], ...]
"""Numbers of something, in order, and seconds: on straight lines in between, and beyond the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How long steps take, in seconds. ``decode`` is by the sequences of a step in which all decode. ``mixed`` is by
    the tokens of a step with prompts in which few sequences decode, ``crowded`` where many do, since no engine records
    all kinds of steps (:data:`FEW`). ``context`` is for each token of the contexts of all. ``blocks`` fit in the cache.
    ``ahead`` steps are issued behind the one that runs, and are not for what comes meanwhile (0 or 1).
    ``decode_spread`` and ``mixed_spread`` are multiples of these times which are equally likely, since steps alike do
    not take the same where processors are shared.
    """

    decode: Curve
    mixed: Curve
    crowded: Curve
    context: float
    blocks: int
    ahead: int = 0
    max_seqs: int = 128
    max_tokens: int = 2048
    decode_spread: tuple[float, ...] = (1.0,)
    mixed_spread: tuple[float, ...] = (1.0,)

    @classmethod
    def load(cls, name: str) -> Device:
        """One that was measured."""
        found = json.loads((FOLDER / f"{name}.json").read_text())["device"]
        curves = {key: tuple((int(at), float(time)) for at, time in found.pop(key)) for key in CURVES}
        spreads = {key: tuple(map(float, found.pop(key, (1.0,)))) for key in SPREADS}
        return cls(**curves, **spreads, **found)

    def seconds(self, decodes: int, prompt_tokens: int, context: int) -> float:
        """Of a step."""
        curves = self.decode, self.mixed, self.crowded
        knots = [tuple(x for x, _ in curve) for curve in curves]
        parts = shares(knots, decodes, prompt_tokens)
        return sum(share * curves[curve][place][1] for curve, place, share in parts) + self.context * context

    def drawn(self, random: Random, steps: int, *, mixed: bool) -> float:
        """The mean of so many steps, as a multiple of what they take."""
        spread = self.mixed_spread if mixed else self.decode_spread
        return fmean(random.choices(spread, k=min(steps, DRAWN))) if len(spread) > 1 else 1.0


def shares(knots: Sequence[Sequence[int]], decodes: int, prompt_tokens: int) -> list[tuple[int, int, float]]:
    """What the time of a step is the sum of, but for its contexts: so much of each value of a curve, by the number of
    the curve and the value's place on it. ``knots`` are what the curves are known at."""
    if not prompt_tokens:
        return [(0, place, share) for place, share in between(knots[0], decodes)]
    most = FEW[-1] if knots[2] else FEW[0]
    crowd = between(FEW, min(decodes, most))
    return [
        (1 + number, place, part * share)
        for number, part in crowd
        if part
        for place, share in between(knots[1 + number], decodes + prompt_tokens)
    ]


def between(knots: Sequence[int], at: int) -> list[tuple[int, float]]:
    """The knots that a number is between, by their places, and how much each counts. It is the first for what is below,
    and on the last line for what is above."""
    if len(knots) == 1 or at <= knots[0]:
        return [(0, 1.0)]
    place = min(bisect_left(knots, at), len(knots) - 1)
    share = (at - knots[place - 1]) / (knots[place] - knots[place - 1])
    return [(place - 1, 1.0 - share), (place, share)]


@dataclass(slots=True, eq=False)
class Running:
    """A turn of a session: what is left of it, and when what happened."""

    placed: Placed
    session: Session
    prompt: int
    output: int
    arrived: float
    prefill_left: int = 0
    made: int = 0
    first: float = 0.0
    last: float = 0.0
    hit: int = 0
    looked_up: int = 0
    moves: int = 0


class Cache:
    """Blocks by hash; the least recently used go first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def hit(self, blocks: Sequence[int]) -> int:
        """How many leading ones it has, which are used now."""
        count = 0
        for block in blocks:
            if block not in self._blocks:
                break
            count += 1
        for block in reversed(blocks[:count]):
            self._blocks.move_to_end(block)
        return count

    def store(self, blocks: Sequence[int]) -> list[BlockEvent]:
        """Adds blocks; returns what an engine would say of it."""
        fresh = [block for block in blocks if block not in self._blocks]
        self._blocks.update(dict.fromkeys(fresh))
        for block in reversed(blocks):
            self._blocks.move_to_end(block)
        events: list[BlockEvent] = [BlockStored(fresh, None, [], BLOCK, None)] if fresh else []
        if (over := len(self._blocks) - self._size) > 0:
            events.append(BlockRemoved([self._blocks.popitem(last=False)[0] for _ in range(over)]))
        return events


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """A batch that runs step by step; steps in which all decode are run many at a time, until one ends or another
    sequence comes. ``version`` is that of what was planned last, ``last`` when the last step before it started."""

    device: Device
    cache: Cache
    waiting: deque[Running] = field(default_factory=deque)
    batch: list[Running] = field(default_factory=list)
    version: int = 0
    computed: int = 0
    started: float = 0.0
    step: float = 0.0
    steps: int = 0
    last: float = 0.0
    chunks: list[tuple[Running, int]] = field(default_factory=list)
    busy: float = 0.0
    random: Random = field(default_factory=Random)

    @property
    def is_running(self) -> bool:
        """Whether a step runs."""
        return self.steps > 0

    def plan(self, now: float) -> float:
        """Begins the next step, or steps; returns when they end; 0: there is nothing to do."""
        self.version += 1
        issued = self.last if self.batch and self.device.ahead else now
        while self.waiting and len(self.batch) < self.device.max_seqs and self.waiting[0].arrived <= issued:
            self._admit(self.waiting.popleft())
        self.chunks, self.steps, self.started = [], 0, now
        if not self.batch:
            return 0.0
        decodes = [one for one in self.batch if not one.prefill_left]
        room = self.device.max_tokens - len(decodes)
        for one in self.batch:
            if one.prefill_left and room > 0:
                self.chunks.append((one, min(room, one.prefill_left)))
                room -= self.chunks[-1][1]
        tokens = sum(count for _, count in self.chunks)
        context = sum(one.prompt + one.made for one in self.batch)
        self.steps = 1 if self.chunks or self.waiting else min(one.output - one.made for one in decodes)
        self.step = self.device.seconds(len(decodes), tokens, context)
        self.step *= self.device.drawn(self.random, self.steps, mixed=bool(tokens))
        return now + self.step * self.steps

    def cut(self, now: float) -> float:
        """Something came: of the steps planned, those that have been issued are the last; returns when they end."""
        issued = min(self.steps, int((now - self.started) / self.step) + 1 + self.device.ahead)
        if issued != self.steps:
            self.version += 1
            self.steps = issued
        return self.started + self.step * self.steps

    def finish(self) -> tuple[dict[Running, int], list[Running], list[BlockEvent]]:
        """Ends the steps planned: who got how many tokens, who has ended, and what happened to the cache."""
        end = self.started + self.step * self.steps
        self.last = end - self.step
        self.busy += end - self.started
        events: list[BlockEvent] = []
        made, ended = {}, []
        decoding = [one for one in self.batch if not one.prefill_left]
        for one, count in self.chunks:
            one.prefill_left -= count
            self.computed += count
            if not one.prefill_left:
                events += self.cache.store(one.session.blocks(one.prompt + one.made))
                decoding.append(one)
        for one in decoding:
            one.made += self.steps
            made[one] = self.steps
            self.computed += self.steps
            if not one.first:
                one.first = end
            if one.made >= one.output:
                one.last = end
                ended.append(one)
                events += self.cache.store(one.session.blocks(one.prompt + one.made))
        if ended:
            self.batch = [one for one in self.batch if one.made < one.output]
        self.steps = 0
        return made, ended, events

    def lose(self) -> list[Running]:
        """It dies: returns what it had."""
        lost = [*self.batch, *self.waiting]
        self.version += 1
        self.batch, self.steps, self.chunks = [], 0, []
        self.waiting.clear()
        return lost

    def _admit(self, one: Running) -> None:
        tokens = one.prompt + one.made
        blocks = one.session.blocks(tokens)
        cached = min(self.cache.hit(blocks) * BLOCK, tokens - 1)
        if not one.made and not one.looked_up:
            one.hit, one.looked_up = cached, tokens
        one.prefill_left = tokens - cached
        self.batch.append(one)
