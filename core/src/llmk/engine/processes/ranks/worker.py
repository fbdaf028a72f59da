"""Runs one rank of a model: builds its share, and carries out the steps that the engine sends."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from llmk.api import ConfigError, Host, Platform
from llmk.config import cpus
from llmk.engine.execution.build import build_runner, cache_room, load_model, record_graphs
from llmk.engine.processes.ranks.rank_meter import RankMeter
from llmk.engine.processes.ranks.worker_messages import (
    START,
    Allocate,
    Command,
    Failed,
    Loaded,
    Measured,
    Meet,
    Ping,
    Pong,
    RankStart,
    Ready,
    Reply,
    Resume,
    Run,
    Sample,
    ShadowComparison,
    Stepped,
)
from llmk.engine.scheduling.async_scheduling import why_asynchronous
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.step import Masks
from llmk.nn.distributed import Distributed
from llmk.nn.parallel import Parallel

if TYPE_CHECKING:
    from llmk.engine.execution.pending_result import PendingResult
    from llmk.engine.execution.runner import Runner
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=Command)


class Worker:
    """The process's side of the conversation, and what it runs.

    After a failure it waits for word that the others failed alike: else they wait for it in a collective, and one that
    belongs to the next step would be taken for that.
    """

    def __init__(self, start: RankStart, commands: Any, replies: Any) -> None:
        self.rank, self._start = start.rank, start
        self._commands, self._replies = commands, replies
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Command)
        self._early: deque[Command] = deque()
        """Commands that came before one that was waited for."""
        self._parallel = Parallel()
        self._num_ranks = 1
        self._overlaps = False
        self._meter = RankMeter(self.rank)

    def run(self, boot: Boot) -> None:
        """Builds the rank's share of ``boot`` and runs steps until the process is ended."""
        try:
            runner = self._build(boot)
        except Exception as error:
            self._fail(START, error)
            return
        self._send(Ready(self.rank))
        in_flight: deque[PendingResult] = deque()
        while True:
            plan = self._receive(Run).plan
            if not in_flight:
                self._meter.start()
            try:
                pending = runner.submit(plan)
                if plan.deferred:
                    while in_flight:  # its masks depend on their tokens
                        self._deliver(in_flight.popleft())
                    runner.sample(self._masks(plan.step))
                in_flight.append(pending)
            except Exception as error:
                while in_flight:
                    self._deliver(in_flight.popleft())
                self._fail(plan.step, error)
            # With asynchronous scheduling, commands that have arrived are issued before any result is waited for.
            while in_flight and not (self._overlaps and (self._early or self._commands.poll(0))):
                self._deliver(in_flight.popleft())

    def _masks(self, step: int) -> Masks:
        """Waits for the masks of a step; those of steps that failed before they came are dropped."""
        masks = self._receive(Sample).masks
        while masks.step != step:
            masks = self._receive(Sample).masks
        return masks

    def _build(self, boot: Boot) -> Runner:
        start, self._num_ranks = self._start, boot.plan.num_ranks
        if boot.settings.config.parallel.bind:
            _bind(start)
        where = {"index": start.index, "num_sharing": start.num_sharing}
        loaded = load_model(boot, self.rank, lambda platform: join(boot, platform, start, self._store), **where)
        self._parallel = loaded.build.parallel
        self._overlaps = bool(why_asynchronous(boot.plan.platform))
        specs, room = pickle.dumps(loaded.cache_specs), cache_room(boot, loaded, start.num_sharing)
        self._send(Loaded(self.rank, specs, room, loaded.shadow_bytes))
        allocate = self._receive(Allocate)
        runner = build_runner(boot, loaded, allocate.num_blocks, allocate.groups[self._parallel.stage])
        record_graphs(boot, loaded.platform, runner)
        gc.collect()
        gc.freeze()
        return runner

    def _store(self) -> Any:
        """Where the ranks find each other: a file, or what the first rank serves at its own address."""
        size, address = self._num_ranks, self._start.address
        if self._start.store:
            return self._start.store
        if self.rank:
            meet = self._receive(Meet)
            return TCPStore(meet.address, meet.port, size, is_master=False, wait_for_workers=False)
        listener = socket.create_server((address, 0))
        meet = Meet(address, listener.getsockname()[1])
        options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
        store = TCPStore(meet.address, meet.port, size, **options)
        self._send(meet)
        return store

    def _deliver(self, pending: PendingResult) -> None:
        """Waits for a step; one rank sends its result."""
        try:
            result = pending.result()
        except Exception as error:
            self._fail(pending.step, error)
            return
        if self._parallel.is_last and self._parallel.tensor_rank == 0:
            self._send(Stepped(result))
        elif result.shadows:
            self._send(ShadowComparison(result.shadows))
        self._meter.end()
        if self._meter.is_due():
            self._send(Measured(self._meter.report()))

    def _fail(self, step: int, error: Exception) -> None:
        logger.error("its start failed" if step == START else f"step {step} failed", exc_info=error)
        self._send(Failed(self.rank, step, self._parallel.num_calls, Failure.of(error)))
        self._receive(Resume)

    def _receive(self, kind: type[C]) -> C:
        """Waits for the first command of a kind."""
        for command in self._early:
            if isinstance(command, kind):
                self._early.remove(command)
                return command
        while True:
            command = self._decoder.decode(self._commands.recv())
            if isinstance(command, kind):
                return command
            if isinstance(command, Ping):
                self._send(Measured(self._meter.report()))
                self._send(Pong(self.rank, command.number))
            else:
                self._early.append(command)

    def _send(self, reply: Reply) -> None:
        self._replies.send(self._encoder.encode(reply))


def _bind(start: RankStart) -> None:
    """Binds this process to its share of the CPUs, before it has memory and threads, which are near them then."""
    own = cpus.share(start.index, start.num_sharing, cpus.in_order(cpus.allowed(), Host()))
    if start.num_sharing > 1 and own:
        os.sched_setaffinity(0, own)
        logger.info("rank %d: CPUs %s", start.rank, ", ".join(map(str, sorted(own))))


def join(boot: Boot, platform: Platform, start: RankStart, store: Callable[[], Any]) -> Parallel:
    """Meets the other ranks at ``store``. Raises ConfigError where the platform lets none meet."""
    plan, rank = boot.plan, start.rank
    if plan.num_ranks == 1:
        return Parallel()
    if platform.collectives is None:
        raise ConfigError(
            f"{plan.platform.label} has nothing by which {plan.num_ranks} processes could exchange tensors",
            hint="set parallel.tensor and parallel.pipeline to 1",
        )
    stage, tensor_rank = divmod(rank, plan.tensor)
    config, device = boot.settings.config, platform.device.torch_device(start.index)
    parallel = Distributed(tensor_rank, plan.tensor, stage, plan.pipeline, in_order=config.engine.deterministic)
    parallel.join(platform.collectives.backend, store(), device)
    if plan.tensor > 1 and config.parallel.all_reduce == "auto" and start.near:
        logger.info("all-reduce: %s", parallel.use_own(platform.collectives.all_reduce, device))
    return parallel
