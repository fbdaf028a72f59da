"""The engine's core: schedule, run, update."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from llmk.api import EngineDead
from llmk.engine.request import EngineOutputs, EngineRequest, EngineStats, TokenOutput
from llmk.engine.scheduler import Scheduler
from llmk.engine.step import StepPlan, StepResult

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""So many steps that fail with none between that brings a token: the device is broken, and not the requests."""


class PendingStep(Protocol):
    """A step that was issued to a device."""

    step: int

    def result(self) -> StepResult:
        """Waits for the step's tokens."""
        ...


class StepRunner(Protocol):
    """What carries out steps, in the order in which they are submitted."""

    def submit(self, plan: StepPlan) -> PendingStep:
        """Issues a step without waiting for it."""
        ...


class EngineCore:
    """Runs sequences to their ends.

    Up to ``depth`` steps are in flight: with 1, a step's tokens are known before the next is planned; with 2, the next
    step is planned and issued while the device runs this one.
    """

    def __init__(self, scheduler: Scheduler, runner: StepRunner, *, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.depth = depth
        self._in_flight: deque[PendingStep] = deque()
        self._failures = 0

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do."""
        return self.scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as they are now."""
        return self.scheduler.snapshot()

    def add(self, request: EngineRequest) -> None:
        """Queues a sequence."""
        self.scheduler.add(request)

    def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences without further output."""
        self.scheduler.abort(ids)

    def step(self, announce: Callable[[EngineOutputs], None] | None = None) -> EngineOutputs:
        """Issues one step if there is one to issue, and takes in the oldest result if no more may be in flight.

        ``announce`` is told who enters the batch before the step is run: who is behind that may never be.
        Raises :class:`~llmk.api.EngineDead` where the device is gone, or fails every step.
        """
        outputs: list[TokenOutput] = []
        plan = self.scheduler.schedule()
        if plan is not None:
            if announce is not None and plan.new:
                announce(EngineOutputs(begun=[request.id for request in plan.new], stats=self.stats))
            outputs += self._submit(plan)
        if self._in_flight and (plan is None or len(self._in_flight) >= self.depth):
            outputs += self._receive(self._in_flight.popleft())
        outputs += self.scheduler.take_failures()
        return EngineOutputs(outputs=outputs, stats=self.stats)

    def _submit(self, plan: StepPlan) -> list[TokenOutput]:
        try:
            self._in_flight.append(self.runner.submit(plan))
        except BaseException as error:
            return self._fail(plan.step, error)
        return []

    def _receive(self, pending: PendingStep) -> list[TokenOutput]:
        try:
            result = pending.result()
        except BaseException as error:
            return self._fail(pending.step, error)
        if result.slots:
            self._failures = 0
        return self.scheduler.update(result)

    def _fail(self, step: int, error: BaseException) -> list[TokenOutput]:
        """An exception in the forward pass ends the step's sequences with its true cause; the engine goes on.

        So it does after an interruption from outside, which is raised again, as is the end of the device.
        """
        cause = f"{type(error).__name__}: {error}"
        outputs = self.scheduler.fail(step, cause)
        if isinstance(error, EngineDead) or not isinstance(error, Exception):
            raise error
        logger.error("step %d failed", step, exc_info=error)
        self._failures += bool(outputs)  # a step in flight behind one that failed may have nobody left
        if self._failures >= MAX_FAILURES:
            raise EngineDead(f"{self._failures} steps in a row failed, the last one with {cause}") from error
        return outputs
