"""One of several replicas, as the front end knows it: what it was given, what it has cached, how fast it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from llmk.api import EngineDead, ReplicaState
from llmk.engine.processes.output_queue import Cause
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.replica_blocks import ReplicaBlocks
from llmk.engine.wire.block_events import AllBlocksCleared
from llmk.engine.wire.request import EngineOutputs, EngineRequest, EngineStats

PACE_WEIGHT = 0.1
"""How much a step counts for the mean of their times."""
SLOWEST_FAIR = 1.5
"""Steps that take up to so many times the median are as good as the others."""
FIRST_LENGTH = 64.0
"""Tokens that an output is expected to have while none has ended."""


@dataclass(slots=True, eq=False)
class Placed:
    """A sequence that has not ended, and where it is: its id for the front end, the id that its replica knows it by
    (which is another one each time that it leaves a replica that runs), and what is still to be computed of it."""

    id: str
    wire_id: str
    request: EngineRequest
    blocks: list[int]
    replica: Replica | None = None
    prompt_left: int = 0
    output_left: int = 0
    num_generated: int = 0
    moves: int = 0


@dataclass(slots=True, eq=False)
class Replica:
    """A replica: its ``supervisor``, and what is known of it.

    Attributes:
        number: from 0; the same for as long as it exists.
        draining: whether it gets nothing new.
        slow_until: until when it is left out for being slow, in seconds of the monotonic clock.
        slow_since: since when its steps have been too slow; 0: they are not.
        unlike: why it can't stand in for the others; empty: it can.
        given: how many sequences it was given.
        moved: how many of these went on elsewhere.
    """

    number: int
    supervisor: Supervisor
    stats: EngineStats = field(default_factory=EngineStats)
    blocks: ReplicaBlocks = field(default_factory=ReplicaBlocks)
    placed: dict[str, Placed] = field(default_factory=dict)
    tenants: Counter[str] = field(default_factory=Counter)
    load: int = 0
    pace: float = 0.0
    last_output: float = field(default_factory=time.monotonic)
    draining: bool = False
    slow_until: float = 0.0
    slow_since: float = 0.0
    unlike: str = ""
    given: int = 0
    moved: int = 0

    @property
    def id(self) -> str:
        """Its name."""
        return f"replica-{self.number}"

    @property
    def status(self) -> str:
        """What it is doing, in a word."""
        if self.unlike:
            return "unlike"
        if self.supervisor.outage is not None or self.supervisor.ended:
            return "down"
        if self.draining:
            return "draining"
        return "slow" if time.monotonic() < self.slow_until else "up"

    def state(self, slowness: float) -> ReplicaState:
        """What routers see."""
        running = min(self.stats.running, len(self.placed))
        return ReplicaState(
            id=self.id,
            running=running,
            waiting=len(self.placed) - running,
            load=self.load,
            slowness=slowness if slowness > SLOWEST_FAIR else 1.0,
            blocks=self.blocks,
            tenants=self.tenants,
        )

    def step_seconds(self, now: float) -> float:
        """How long its steps take, of late: what it is silent for while it has work counts, too."""
        silent = now - self.last_output if self.placed else 0.0
        return max(self.pace, silent)

    def is_silent(self) -> bool:
        """Whether it says nothing although it is not known to be down."""
        try:
            self.supervisor.check_health()
        except EngineDead:
            return self.supervisor.outage is None
        return False

    def give(self, one: Placed, expected: int, cached: int) -> None:
        """Takes note of a sequence that it gets."""
        self.placed[one.wire_id] = one
        one.replica = self
        one.prompt_left = max(1, len(one.request.prompt_token_ids) - cached)
        one.output_left = max(1, expected)
        self.load += one.prompt_left + one.output_left
        self.blocks.expect(one.blocks)
        self.tenants[one.request.context.tenant] += 1
        if len(self.placed) == 1:
            self.last_output = time.monotonic()
        self.given += 1

    def drop(self, one: Placed) -> None:
        """Takes note of a sequence that has ended or left."""
        del self.placed[one.wire_id]
        one.replica = None
        self.load -= one.prompt_left + one.output_left
        self._computed(one)
        tenant = one.request.context.tenant
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]

    def progress(self, one: Placed, num_tokens: int) -> None:
        """Takes note of tokens that it generated."""
        self.load -= one.prompt_left
        self._computed(one)
        done = min(num_tokens, one.output_left - 1)
        self.load -= done
        one.output_left -= done
        one.num_generated += num_tokens

    def take(self, outputs: EngineOutputs) -> None:
        """Takes note of what it says of itself."""
        self.stats = outputs.stats
        self.blocks.take(outputs.blocks)
        now = time.monotonic()
        if outputs.step is not None or outputs.outputs:
            self.last_output = now
        if outputs.step is not None:
            self.pace += (outputs.step.seconds - self.pace) * (PACE_WEIGHT if self.pace else 1.0)

    def forget(self) -> None:
        """Its engine is another one from now on."""
        self.blocks.take([AllBlocksCleared()])
        self.pace, self.slow_since = 0.0, 0.0
        self.last_output = time.monotonic()

    def _computed(self, one: Placed) -> None:
        if one.prompt_left:
            self.blocks.settle(one.blocks)
            one.prompt_left = 0


@dataclass(slots=True)
class ReplicaSink:
    """Where a replica's supervisor puts what its engine sends."""

    replica: Replica
    take: Callable[[Replica, EngineOutputs], None]
    lose: Callable[[Replica, Cause], None]

    def put(self, outputs: EngineOutputs) -> None:
        """Takes the outputs of a step."""
        self.take(self.replica, outputs)

    def end(self, cause: Cause) -> None:
        """There will be no engine any more."""
        self.lose(self.replica, cause)
