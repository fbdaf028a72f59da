"""Sequences that have not ended, whichever engine runs them, and which of them engines may have died of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from msgspec.structs import replace

from llmk.engine.wire.plugin_calls import GRAMMAR, Culprit
from llmk.engine.wire.request import EngineRequest

TRIES = 3
"""So many engines may die of a sequence."""
_NO_LIMIT = 1 << 30


class Stage(IntEnum):
    """How far a sequence has come with the engine that runs: not sent to it, sent, admitted to the batch, answered."""

    HELD = 0
    SENT = 1
    ADMITTED = 2
    PROVEN = 3


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A sequence that has not ended: the request, since when, and what was delivered: tokens, or the hidden
    states of ``num_delivered`` prompt tokens. ``deaths`` counts engines that may have died of it; ``is_moved``: engines
    of another replica too.
    """

    request: EngineRequest
    arrived: float
    tokens: list[int] = field(default_factory=list)
    num_delivered: int = 0
    stage: Stage = Stage.HELD
    deaths: int = 0
    is_moved: bool = False

    def continued(self, now: float) -> EngineRequest:
        """What an engine must know to go on with it."""
        delivered = {"generated_token_ids": list(self.tokens), "num_delivered": self.num_delivered}
        return replace(self.request, **delivered, age=now - self.arrived)

    def uses(self, culprit: Culprit) -> bool:
        """Whether a plugin's code may have been called for it."""
        params = self.request.params
        grammar = culprit.kind == GRAMMAR and params.structured_outputs is not None
        return (grammar or culprit.id in params.logits_processors) and culprit.request in ("", self.request.id)


class CrashSuspects:
    """A sequence that engines die of must not go on forever. Suspects are the sequences in the batch that had no
    token yet, or else all in it; after :data:`TRIES` deaths a sequence is guilty. So that the innocent do not
    fail with it, what ran when a second engine in a row died is given to the next in groups, the most suspect first:
    one, then two, then four, each when those before it have had a token. Where an engine dies of a group of one,
    no other is suspect; where it dies of a larger one, groups of the next engine grow to half its size.

    ``live`` are all sequences, by id.
    """

    def __init__(self, live: dict[str, LiveSequence]) -> None:
        self._live = live
        self._deaths = 0
        """How many engines in a row ended soon after their start."""
        self._waiting: deque[LiveSequence] = deque()
        """Who is to be tried; all others are held back until then."""
        self._trial: list[LiveSequence] = []
        """Who is tried now."""
        self._largest = _NO_LIMIT

    @property
    def trying(self) -> bool:
        """Whether sequences are held back while others are tried."""
        return bool(self._waiting or self._trial)

    def at(self, *stages: Stage) -> list[LiveSequence]:
        """All sequences that have come so far."""
        return [one for one in self._live.values() if one.stage in stages]

    def trust(self) -> None:
        """Holds nothing against anyone that an engine ran which ran for long."""
        self._deaths = 0
        self._largest = _NO_LIMIT
        for one in self._live.values():
            if not one.is_moved or one.stage is Stage.PROVEN:
                one.deaths = 0

    def blame(self) -> list[LiveSequence]:
        """Takes note that an engine died of an unknown cause; returns the sequences that are guilty now."""
        self._deaths += 1
        tried = self._unproven()
        if len(tried) > 1:
            self._largest = max(1, len(tried) // 2)
        else:
            ran = self.at(Stage.ADMITTED) or self.at(Stage.PROVEN) or self.at(Stage.SENT)
            for one in tried or ran:
                one.deaths += 1
        guilty = [one for one in self._live.values() if one.deaths >= TRIES]
        if guilty:
            self._acquit()
        return guilty

    def hold(self) -> None:
        """Takes back what the dead engine had, and arranges who is to be tried with the next."""
        ran = self.at(Stage.ADMITTED, Stage.PROVEN) or self.at(Stage.SENT)
        suspect = self._deaths > 1 or any(one.deaths > 1 for one in ran)  # some may have come from another engine
        tried, chosen = set(self._unproven()), {*ran, *self._waiting} if suspect else set()
        left = [one for one in self._live.values() if one in chosen]
        self._waiting = deque(sorted(left, key=lambda one: (-one.deaths, one not in tried)))
        self._trial = []
        for one in self._live.values():
            one.stage = Stage.HELD

    def next(self) -> list[LiveSequence]:
        """Who is to be sent now: the next group, if those before it have had a token or have ended; or all others,
        once none is left to be tried."""
        if self._unproven():
            return []
        size, self._trial = min(2 * len(self._trial) or 1, self._largest), []
        while self._waiting and len(self._trial) < size:
            one = self._waiting.popleft()
            if one.request.id in self._live:
                self._trial.append(one)
        if self._trial:
            return self._trial
        self._largest = _NO_LIMIT
        return self.at(Stage.HELD)

    def _unproven(self) -> list[LiveSequence]:
        return [one for one in self._trial if one.request.id in self._live and one.stage is not Stage.PROVEN]

    def _acquit(self) -> None:
        self._largest = _NO_LIMIT
        for one in self._live.values():
            one.deaths = 0
