"""Messages between the processes that run a model together and the executor that started them."""

from __future__ import annotations

import msgspec

from llmk.engine.wire.failure import Failure
from llmk.engine.wire.request import ShadowCount
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.cache_groups import CacheGroup

START = -1
"""Stands in a step's number's place for what comes before the first."""


class Allocate(msgspec.Struct, tag=True):
    """Make a cache of so many blocks, for each stage's groups."""

    num_blocks: int
    groups: list[tuple[CacheGroup, ...]]


class Run(msgspec.Struct, tag=True):
    """Carry out a step."""

    plan: StepPlan


class Sample(msgspec.Struct, tag=True):
    """Sample the deferred step that was sent last."""

    masks: Masks


class Resume(msgspec.Struct, tag=True):
    """All failed alike: go on with the next step."""


class Ping(msgspec.Struct, tag=True):
    """Say that the rank takes commands."""

    number: int


class Loaded(msgspec.Struct, tag=True):
    """The weights are there. The cache specs of the rank's layers, pickled, bytes that are free on the device, and what
    shadows keep for a block, in bytes."""

    rank: int
    specs: bytes
    available: int
    shadow_bytes: int = 0


class Ready(msgspec.Struct, tag=True):
    """Steps can be run."""

    rank: int


class Stepped(msgspec.Struct, tag=True):
    """The result of a step, from the first rank of the last stage."""

    result: StepResult


class Pong(msgspec.Struct, tag=True):
    """The answer to a ping."""

    rank: int
    number: int


class ShadowComparison(msgspec.Struct, tag=True):
    """What a rank that sends no results has compared in a step."""

    shadows: list[ShadowCount]


class Failed(msgspec.Struct, tag=True):
    """A step failed, or the start, after ``num_calls`` collectives since then. The rank does nothing until it receives
    :class:`Resume`."""

    rank: int
    step: int
    num_calls: int
    failure: Failure


class Ended(msgspec.Struct, tag=True):
    """A process ended unexpectedly; its watcher says how."""

    rank: int
    how: str


Command = Allocate | Run | Sample | Resume | Ping
Reply = Loaded | Ready | Stepped | Pong | ShadowComparison | Failed | Ended
