"""The executor of several processes: has them started, hands every step to all, and notices when one fails or ends."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
import zmq

from llmk.api import CacheSpec, EngineDead, LlmkError
from llmk.engine.execution.executor import Executor
from llmk.engine.processes.ranks.launching import Placed, make_launcher, names
from llmk.engine.processes.ranks.sockets import EngineSockets
from llmk.engine.processes.ranks.worker_messages import (
    START,
    Allocate,
    Checked,
    Command,
    Ended,
    Failed,
    Loaded,
    Measured,
    Meet,
    Ping,
    Pong,
    Ready,
    Reply,
    Resume,
    Run,
    Sample,
    ShadowComparison,
    Stepped,
)
from llmk.engine.scheduling.async_scheduling import OTHER_PROCESSES
from llmk.engine.wire.rank_stats import RankStats
from llmk.engine.wire.request import ShadowCount, add_counts
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.cache_groups import CacheGroup, block_bytes, cache_groups
from llmk.planning.memory import CachePlan, plan_cache

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

PING_SECONDS = 1.0
"""What idle processes get to answer."""
AGREE_SECONDS = 0.5
"""What the other processes get to say that they failed too before they are taken to wait for the one that did."""

REACH_SECONDS = 120.0
"""What processes on other machines get to start and reach this one."""
DIFFER_SECONDS = 5.0
"""What the other machines get to say what they lack, once one has."""
REASON_SECONDS = 2.0
"""What a launcher gets to say how a process ended, once its connection has."""

R = TypeVar("R", Checked, Loaded, Ready)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingStep:
    """A step that was handed out."""

    step: int
    workers: MultiProcessExecutor

    def is_done(self) -> bool:
        """Whether a reply has come: most likely its result."""
        return self.workers.has_reply()

    def result(self) -> StepResult:
        """Waits for its result."""
        return self.workers.result(self.step)


class MultiProcessExecutor(Executor):
    """The processes that hold a model between them, one per rank. Make them with :meth:`start`."""

    asynchronous = OTHER_PROCESSES

    def __init__(self, boot: Boot) -> None:
        self._plan, self._silence = boot.plan, boot.settings.config.parallel.silence_seconds
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self.pids: list[int] = []
        """The processes' ids on their machines, by rank."""
        self._nodes = [""] * boot.plan.num_ranks
        """Where they are, for messages."""
        self._last_words: dict[int, str] = {}
        """The last line that a process wrote, of those whose lines come here."""
        self._lock = threading.Lock()
        self._ended: Ended | None = None
        """The first process that ended without a request to end."""
        self._dead: EngineDead | None = None
        self._failed: dict[int, dict[int, Failed]] = {}
        """What failed and is not dealt with yet, by step and rank."""
        self._compared: list[ShadowCount] = []
        """What ranks compared since a step's result came."""
        self._measured: dict[int, RankStats] = {}
        """What ranks said of themselves since :meth:`take_ranks` was called."""
        self._num_in_flight = 0
        self._num_pings = 0
        self._closed = threading.Event()
        self._launcher = make_launcher(boot, self._report, self._print)
        try:
            self._placed = Placed.by(boot, self._launcher)
            self._sockets = EngineSockets(boot.plan.num_ranks, self._launcher.address, self._silence)
        except BaseException:
            self._launcher.close()
            raise
        self._nodes = names(self._placed.places)

    @classmethod
    def start(cls, boot: Boot) -> tuple[MultiProcessExecutor, CachePlan]:
        """Starts the processes; returns them, ready for steps, and the size of the cache, which is the same in all.

        Raises what a process raises at its start, as the same class of :class:`~llmk.api.LlmkError`, NotEnoughMemory
        where a device has no room for the cache, EngineDead where a process ends.
        """
        workers = cls(boot)
        try:
            workers._sockets.watch(workers._lost)
            workers._placed.start(boot, workers._sockets)
            workers._check()
            loaded = workers._from_all(Loaded)
            specs = [pickle.loads(each.specs) for each in loaded]  # nosec B301 # our own ranks wrote it
            groups = cache_groups(boot, specs[:: boot.plan.tensor])
            devices = {workers._placed.sharing(boot, rank) for rank in range(boot.plan.num_ranks)}
            room, shadows = [each.available for each in loaded], [each.shadow_bytes for each in loaded]
            cache = smallest_cache(boot, groups, specs, room, shadows, devices=devices)
            workers._send(Allocate(cache.num_blocks, groups))
            workers._from_all(Ready)
        except BaseException:
            workers.close()
            raise
        return workers, cache

    def submit(self, plan: StepPlan) -> _PendingStep:
        self.check()
        self._send(Run(plan))
        self._num_in_flight += 1
        return _PendingStep(plan.step, self)

    def sample(self, masks: Masks) -> None:
        self.check()
        self._send(Sample(masks))

    def result(self, step: int) -> StepResult:
        """Waits for the result of ``step``, the oldest step whose result was not received yet.

        Where it failed in all processes alike, raises what it failed with; they go on then.
        """
        self._num_in_flight -= 1
        self.check()
        while step not in self._failed:
            reply = self._receive()
            if isinstance(reply, Stepped):
                add_counts(reply.result.shadows, self._compared)
                self._compared = []
                return reply.result
        raise self._cause(step)

    def has_reply(self) -> bool:
        """Whether any process has sent something that was not received yet."""
        return bool(self._sockets.replies.poll(0))

    def check(self) -> None:
        if self._dead is None and self._ended is not None:
            what = f"{self._name(self._ended.rank)} {self._ended.how}"
            self._dead = EngineDead(what, hint="its own messages are on stderr")
        if self._dead is not None:
            raise EngineDead(self._dead.message, hint=self._dead.hint) from self._dead.__cause__

    def answers(self) -> bool:
        self.check()
        if self._num_in_flight:
            return True  # the results of steps will show it
        self._num_pings += 1
        self._send(Ping(self._num_pings))
        silent, end = set(range(self._plan.num_ranks)), time.monotonic() + PING_SECONDS
        while silent and (left := end - time.monotonic()) > 0:
            reply = self._receive(left)
            if isinstance(reply, Pong) and reply.number == self._num_pings:
                silent.discard(reply.rank)
        return not silent

    def take_ranks(self) -> list[RankStats]:
        taken, self._measured = self._measured, {}
        return [taken[rank] for rank in sorted(taken)]

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._launcher.close()
            self._sockets.close()

    def _report(self, place: int, how: str) -> None:
        """Takes note that a process ended, from any thread. The others can't go on: ends them."""
        rank = self._placed.rank(place)
        said = self._last_words.get(rank, "")
        self._end(rank, f"{how} ({said})" if said else how)

    def _end(self, rank: int, how: str) -> None:
        with self._lock:
            if self._closed.is_set() or self._ended is not None:
                return
            self._ended = Ended(rank, how)
        self._sockets.reply(self._encoder.encode(self._ended))
        self._launcher.kill()

    def _lost(self, rank: int) -> None:
        """Takes note that the connection to a process on another machine is gone. The launcher may know why."""
        if not self._closed.wait(REASON_SECONDS):
            self._end(
                rank,
                f"is not connected: its process, machine or network ended, or was silent for {self._silence:g} s",
            )

    def _print(self, place: int, line: str) -> None:
        """Shows what a process on another machine wrote, which process, and where."""
        rank = self._placed.rank(place)
        self._last_words[rank] = line
        if line.startswith('{"'):  # a line of JSON stays one
            where = {"rank": rank, "node": self._placed.places[rank].node}
            sys.stderr.write(f"{json.dumps(where)[:-1]}, {line[1:]}\n")
        else:
            sys.stderr.write(f"[rank {rank}{self._nodes[rank]}] {line}\n")

    def _check(self) -> None:
        """Waits until all processes have started, and know that their machines are fit for it."""
        remote = bool(self._launcher.address)
        checked = self._from_all(Checked, REACH_SECONDS if remote else None)
        self.pids = [each.pid for each in checked]

    def _from_all(self, kind: type[R], seconds: float | None = None) -> list[R]:
        """Waits for a reply of one kind from every rank, at most so long; returns them by rank."""
        found: dict[int, R] = {}
        differ: dict[int, list[str]] = {}
        end = None if seconds is None else time.monotonic() + seconds
        while len(found) < self._plan.num_ranks:
            left = None if end is None else max(0.0, end - time.monotonic())
            reply = self._receive(left)
            if isinstance(reply, kind):
                found[reply.rank] = reply
            if isinstance(reply, Checked) and reply.problems:
                differ[reply.rank] = reply.problems
                end = time.monotonic() + DIFFER_SECONDS if len(differ) == 1 else end
            if START in self._failed:
                raise self._cause(START)
            if reply is None and not left:
                break
        if differ:
            raise self._placed.differ(differ)
        if missing := [rank for rank in range(self._plan.num_ranks) if rank not in found]:
            raise self._unreached(missing, seconds or 0.0)
        return [found[rank] for rank in sorted(found)]

    def _unreached(self, ranks: Sequence[int], seconds: float) -> EngineDead:
        where = " and ".join(self._name(rank) for rank in ranks)
        return EngineDead(
            f"{where} did not reach this machine at {self._launcher.address} within {seconds:g} s",
            hint="let the nodes connect to that address, or name another in the launcher's options",
        )

    def _cause(self, step: int) -> LlmkError:
        """What a failure comes to: where all failed alike and are in step, they go on, and it is the step's alone. Else
        it is unknown which rank waits for which, so the engine ends.
        """
        end = time.monotonic() + AGREE_SECONDS + (2 * REASON_SECONDS if self._launcher.address else 0.0)
        while len(self._failed[step]) < self._plan.num_ranks and (left := end - time.monotonic()) > 0:
            self._receive(left)
        failed = list(self._failed.pop(step).values())
        error, first = failed[0].failure.error(), failed[0].rank
        if step == START:
            error.message = f"{self._name(first)}: {error.message}" if self._nodes[first] else error.message
            return error
        in_step = self._plan.pipeline == 1 and len({each.num_calls for each in failed}) == 1
        if in_step and len(failed) == self._plan.num_ranks:
            self._send(Resume())
            return error
        what = f"{self._name(first)} failed in step {step}, where others may wait for it: {error.message}"
        self._dead = EngineDead(what, hint="its own messages are on stderr")
        self._dead.__cause__ = error
        self._launcher.kill()
        return self._dead

    def _receive(self, timeout: float | None = None) -> Reply | None:
        """The next reply; ``None`` after ``timeout`` seconds. Takes note of failures; raises EngineDead for an end."""
        if not self._sockets.replies.poll(None if timeout is None else 1000 * timeout):
            return None
        reply: Reply = self._decoder.decode(self._sockets.replies.recv())
        if isinstance(reply, Failed):
            self._failed.setdefault(reply.step, {})[reply.rank] = reply
        elif isinstance(reply, ShadowComparison):
            add_counts(self._compared, reply.shadows)
        elif isinstance(reply, Measured):
            reply.stats.node = self._placed.places[reply.stats.rank].node
            self._measured[reply.stats.rank] = reply.stats
        elif isinstance(reply, Meet):
            self._send(reply)
        elif isinstance(reply, Ended):
            self.check()
        return reply

    def _name(self, rank: int) -> str:
        stage, tensor_rank = divmod(rank, self._plan.tensor)
        return f"the engine's process {rank} (stage {stage}, tensor rank {tensor_rank}){self._nodes[rank]}"

    def _send(self, command: Command) -> None:
        data = self._encoder.encode(command)
        for rank, socket in enumerate(self._sockets.commands):
            try:
                socket.send(data, zmq.NOBLOCK)
            except zmq.Again:  # no process is connected: it has ended, and someone may know how
                self._lost(rank)
                self.check()


def smallest_cache(
    boot: Boot,
    groups: Sequence[Sequence[CacheGroup]],
    specs: Sequence[Sequence[CacheSpec]],
    available: Sequence[int],
    shadow_bytes: Sequence[int] = (),
    *,
    devices: Iterable[Collection[int]] | None = None,
) -> CachePlan:
    """The size of the cache, by each stage's cache groups, and each rank's cache specs, free bytes, and bytes that its
    shadows keep for a block, if any do. All number their blocks alike, so the device with the least room for them
    decides. ``devices`` are the ranks on each; ``None``: as the plan spreads them over one machine. Raises
    NotEnoughMemory.
    """
    plan, plans = boot.plan, []
    sizes = [block_bytes(own, groups[rank // plan.tensor]) for rank, own in enumerate(specs)]
    for neighbors in devices or {plan.ranks_on_same_device(rank) for rank in range(plan.num_ranks)}:
        size, free = sum(sizes[rank] for rank in neighbors), min(available[rank] for rank in neighbors)
        shadows = sum(shadow_bytes[rank] for rank in neighbors) if shadow_bytes else 0
        plans.append(plan_cache(boot.settings.config, boot.facts.max_model_len, groups[0], size, free, shadows))
    return min(plans, key=lambda found: found.num_blocks)
