"""The executor of several processes: starts them, hands every step to all, and notices when one fails or ends."""

from __future__ import annotations

import pickle
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import zmq

from llmk.api import CacheSpec, EngineDead, LlmkError
from llmk.engine.execution.executor import Executor
from llmk.engine.processes import child_process as child
from llmk.engine.processes.worker_messages import (
    START,
    Allocate,
    Command,
    Ended,
    Failed,
    Loaded,
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
from llmk.engine.wire.plugin_calls import watching
from llmk.engine.wire.request import ShadowCount, add_counts
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.kernel.interpreter import PYTHON
from llmk.planning.cache_groups import CacheGroup, block_bytes, cache_groups
from llmk.planning.memory import CachePlan, plan_cache
from llmk.planning.packed_boot import pack

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

PING_SECONDS = 1.0
"""What idle processes get to answer."""
AGREE_SECONDS = 0.5
"""What the other processes get to say that they failed too before they are taken to wait for the one that did."""

R = TypeVar("R", Loaded, Ready)


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
        self._plan = boot.plan
        self._folder = tempfile.TemporaryDirectory(prefix="llmk-")
        self._context: zmq.Context[Any] = zmq.Context()
        ranks = range(boot.plan.num_ranks)
        self._commands = [child.bind(self._context, zmq.PUSH, self._folder.name, f"rank{rank}") for rank in ranks]
        self._replies = child.bind(self._context, zmq.PULL, self._folder.name, "replies")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._processes: list[subprocess.Popen[Any]] = []
        self._watchers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended: Ended | None = None
        """The first process that ended without a request to end."""
        self._dead: EngineDead | None = None
        self._failed: dict[int, dict[int, Failed]] = {}
        """What failed and is not dealt with yet, by step and rank."""
        self._compared: list[ShadowCount] = []
        """What ranks compared since a step's result came."""
        self._num_in_flight = 0
        self._num_pings = 0
        self._killed: dict[int, str] = {}
        """Why, by rank, of processes that were not left to end by themselves."""
        self._closed = False
        self._closing = threading.Event()

    @classmethod
    def start(cls, boot: Boot) -> tuple[MultiProcessExecutor, CachePlan]:
        """Starts the processes; returns them, ready for steps, and the size of the cache, which is the same in all.

        Raises what a process raises at its start, as the same class of :class:`~llmk.api.LlmkError`, NotEnoughMemory
        where a device has no room for the cache, EngineDead where a process ends.
        """
        workers = cls(boot)
        try:
            workers._spawn(pack(boot))
            loaded = workers._from_all(Loaded)
            specs = [pickle.loads(each.specs) for each in loaded]  # nosec B301 # our own ranks wrote it
            groups = cache_groups(boot, specs[:: boot.plan.tensor])
            room = [each.available for each in loaded]
            cache = smallest_cache(boot, groups, specs, room, [each.shadow_bytes for each in loaded])
            workers._send(Allocate(cache.num_blocks, groups))
            workers._from_all(Ready)
        except BaseException:
            workers.close()
            raise
        return workers, cache

    @property
    def pids(self) -> list[int]:
        """The processes' ids, by rank."""
        return [process.pid for process in self._processes]

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
        return bool(self._replies.poll(0))

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

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._end_all()
        for watcher in self._watchers:
            watcher.join()
        self._context.destroy(linger=0)
        self._folder.cleanup()

    def _spawn(self, boot: dict[str, Any]) -> None:
        command = [*PYTHON, "-m", "llmk.engine.processes.worker"]
        for rank in range(self._plan.num_ranks):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2)
            watcher = threading.Thread(target=self._watch, args=(rank, process), name=f"llmk-rank{rank}", daemon=True)
            self._processes.append(process)
            self._watchers.append(watcher)
            watcher.start()
        stopped = threading.Thread(target=self._end_stopped, name="llmk-ranks-stopped", daemon=True)
        self._watchers.append(stopped)
        stopped.start()
        replies, store = child.address(self._replies), f"{self._folder.name}/store"
        for rank, process in enumerate(self._processes):
            commands = child.address(self._commands[rank])
            child.give(process, self._folder.name, rank, commands, replies, store, watching(rank), boot)

    def _watch(self, rank: int, process: subprocess.Popen[Any]) -> None:
        """Waits for a process's end. Where it is unexpected, the others can't go on: ends them, and reports it."""
        code = process.wait()
        with self._lock:
            if self._closed or self._ended is not None:
                return
            self._ended = Ended(rank, self._killed.get(rank) or child.ending(code))
        self._end_all()
        replies = child.connect(self._context, zmq.PUSH, child.address(self._replies))
        replies.send(self._encoder.encode(self._ended))
        replies.close(linger=1000)

    def _end_stopped(self) -> None:
        """Kills a process that is stopped: the others would wait for it, all of them for ever."""
        stops = [child.StopWatch(process.pid) for process in self._processes]
        while not self._closing.wait(child.LOOK_SECONDS) and self._ended is None:
            for rank, stop in enumerate(stops):
                if (seconds := stop.seconds) >= child.STOPPED_SECONDS:
                    self._killed[rank] = f"was stopped (SIGSTOP) for {seconds:.0f} s, and was killed"
                    self._processes[rank].kill()

    def _end_all(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()

    def _from_all(self, kind: type[R]) -> list[R]:
        """Waits for a reply of one kind from every rank; returns them by rank."""
        found: dict[int, R] = {}
        while len(found) < self._plan.num_ranks:
            reply = self._receive()
            if isinstance(reply, kind):
                found[reply.rank] = reply
            if START in self._failed:
                raise self._cause(START)
        return [found[rank] for rank in sorted(found)]

    def _cause(self, step: int) -> LlmkError:
        """What a failure comes to: where all failed alike and are in step, they go on, and it is the step's alone. Else
        it is unknown which rank waits for which, so the engine ends.
        """
        end = time.monotonic() + AGREE_SECONDS
        while len(self._failed[step]) < self._plan.num_ranks and (left := end - time.monotonic()) > 0:
            self._receive(left)
        failed = list(self._failed.pop(step).values())
        error = failed[0].failure.error()
        if step == START:
            return error
        in_step = self._plan.pipeline == 1 and len({each.num_calls for each in failed}) == 1
        if in_step and len(failed) == self._plan.num_ranks:
            self._send(Resume())
            return error
        what = f"{self._name(failed[0].rank)} failed in step {step}, where others may wait for it: {error.message}"
        self._dead = EngineDead(what, hint="its own messages are on stderr")
        self._dead.__cause__ = error
        self._end_all()
        return self._dead

    def _receive(self, timeout: float | None = None) -> Reply | None:
        """The next reply; ``None`` after ``timeout`` seconds. Takes note of failures; raises EngineDead for an end."""
        if not self._replies.poll(None if timeout is None else 1000 * timeout):
            return None
        reply: Reply = self._decoder.decode(self._replies.recv())
        if isinstance(reply, Failed):
            self._failed.setdefault(reply.step, {})[reply.rank] = reply
        elif isinstance(reply, ShadowComparison):
            add_counts(self._compared, reply.shadows)
        elif isinstance(reply, Ended):
            self.check()
        return reply

    def _name(self, rank: int) -> str:
        stage, tensor_rank = divmod(rank, self._plan.tensor)
        return f"the engine's process {rank} (stage {stage}, tensor rank {tensor_rank})"

    def _send(self, command: Command) -> None:
        data = self._encoder.encode(command)
        for socket in self._commands:
            socket.send(data, zmq.NOBLOCK)


def smallest_cache(
    boot: Boot,
    groups: Sequence[Sequence[CacheGroup]],
    specs: Sequence[Sequence[CacheSpec]],
    available: Sequence[int],
    shadow_bytes: Sequence[int] = (),
) -> CachePlan:
    """The size of the cache, by each stage's cache groups, and each rank's cache specs, free bytes, and bytes that its
    shadows keep for a block, if any do. All number their blocks alike, so the device with the least room for them
    decides. Raises NotEnoughMemory.
    """
    plan, plans = boot.plan, []
    sizes = [block_bytes(own, groups[rank // plan.tensor]) for rank, own in enumerate(specs)]
    for neighbors in {plan.ranks_on_same_device(rank) for rank in range(plan.num_ranks)}:
        size, free = sum(sizes[rank] for rank in neighbors), min(available[rank] for rank in neighbors)
        shadows = sum(shadow_bytes[rank] for rank in neighbors) if shadow_bytes else 0
        plans.append(plan_cache(boot.settings.config, boot.facts.max_model_len, groups[0], size, free, shadows))
    return min(plans, key=lambda found: found.num_blocks)
