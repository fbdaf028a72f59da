"""Messages between the processes that run a model together and the executor that started them."""

from __future__ import annotations

import msgspec

from llmk.engine.processes.ranks.checks import Expected
from llmk.engine.processes.ranks.sockets import Link
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.rank_stats import RankStats
from llmk.engine.wire.request import ShadowCount
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.cache_groups import CacheGroup

START = -1
"""Stands in a step's number's place for what comes before the first."""


class RankStart(msgspec.Struct, kw_only=True):
    """What a rank's process is given: where it is, and what it is to run. ``index`` is the number of its device among
    those of its machine, which ``num_sharing`` ranks use; ``near``, whether the ranks that share its layers are all on
    the machine. ``environment`` is what else it needs in its environment.
    ``store`` is the file by which the ranks find each other; empty: they are not on one machine, and do so at
    ``address``, this one's. ``watching`` is what :func:`llmk.engine.wire.plugin_calls.watched` takes. ``boot`` is
    pickled, and read where all that is ``expected`` is there.
    """

    rank: int
    link: Link
    node: str
    address: str
    index: int
    num_sharing: int
    near: bool
    devices: tuple[str, ...]
    store: str
    watching: tuple[str, frozenset[str]] | None
    expected: Expected | None
    boot: bytes


class Meet(msgspec.Struct, tag=True):
    """The first rank waits for the others there."""

    address: str
    port: int


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


class Checked(msgspec.Struct, tag=True):
    """The process has started. ``problems`` are what its machine lacks; where there are any, it waits to be ended."""

    rank: int
    pid: int
    problems: list[str] = []


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


class Measured(msgspec.Struct, tag=True):
    """What a rank has measured of itself, once in a while."""

    stats: RankStats


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


Command = Meet | Allocate | Run | Sample | Resume | Ping
Reply = Checked | Meet | Loaded | Ready | Stepped | Pong | Measured | ShadowComparison | Failed | Ended
