"""The engine's core: schedule, run, update."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from llmk.api import EngineDead, LlmkError, RequestError
from llmk.engine.device.trace import NULL_TRACE, NullTrace
from llmk.engine.execution.executor import Executor, PendingStep
from llmk.engine.scheduling.issue_time import IssueTime
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.text.grammars import GrammarStarter
from llmk.engine.wire.grammar_params import PARAM
from llmk.engine.wire.request import EngineOutputs, EngineRequest, EngineStats, StepTimes, TokenOutput, add_counts
from llmk.engine.wire.step import StepPlan, StepResult

S = TypeVar("S")
T = TypeVar("T")


@dataclass(slots=True)
class _InFlight:
    """A step that was issued. Times are of the scheduler's clock.

    Attributes:
        issued: when.
        expected: seconds that it is expected to take; 0: not known.
        put_off: whether the next step was put off while this one ran.
        ended: when a check first found that it had ended; 0: no check did.
    """

    pending: PendingStep
    num_tokens: int
    issued: float
    expected: float
    put_off: bool = False
    ended: float = 0.0


logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""After so many failed steps with no result between, the device is taken to be broken, and not the requests."""

_PREPARATION = -2
"""Stands for the number of a step in plans that no scheduler made."""
_WAITED = 1e-4
"""Seconds of waiting for a step above which it ended when the waiting did."""
_GRAMMAR_SECONDS = 0.01
"""How long an idle engine waits for a grammar before it looks for commands again."""


class EngineCore:
    """Runs sequences to their ends.

    Up to ``depth`` steps are in flight: with 1, a step's tokens are known before the next is planned; with 2, the next
    step is planned and issued while the device runs this one.

    ``grammars`` starts those of sequences that have one, which are queued once theirs is started.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Executor,
        *,
        depth: int = 1,
        grammars: GrammarStarter | None = None,
        trace: NullTrace = NULL_TRACE,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.depth = depth
        self._grammars = grammars
        self._in_flight: deque[_InFlight] = deque()
        self._issue_time = IssueTime() if runner.asynchronous and depth > 1 else None
        self._has_prompts = False
        """Whether the newest step computes several tokens of a request."""
        self._deferred: int | None = None
        """The newest of them, where it has not been sampled."""
        self._clock = scheduler.live.clock
        self._away = 0.0
        """Seconds of this step in which the host ran it or waited for it."""
        self._ended = 0.0
        """When the last call of :meth:`step` ended."""
        self._received = 0.0
        """When the last step ended whose result was taken in; at most so late, where nothing waited for it."""
        self._schedule = trace.timed("schedule", scheduler.schedule)
        self._fill_masks = trace.timed("fill masks", scheduler.masks)
        self._update = trace.timed("update", scheduler.update)
        submit, wait = trace.submitting(runner.submit), trace.timed("wait", _result)
        self._submit = submit if runner.asynchronous else self._counted(submit)
        self._wait = self._counted(wait) if runner.asynchronous else wait
        self._sample_masked = runner.sample if runner.asynchronous else self._counted(runner.sample)
        self._failures = 0
        self.can_prepare = bool(runner.asynchronous)
        """Whether :meth:`prepare` has anything to do."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do."""
        return self.scheduler.has_work or bool(self._num_starting)

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as they are now."""
        stats = self.scheduler.snapshot()
        if self._grammars is not None:
            stats.waiting += self._grammars.num_starting
        return stats

    @property
    def _num_starting(self) -> int:
        """Sequences whose grammars are being started."""
        return 0 if self._grammars is None else self._grammars.num_starting

    def answers(self) -> bool:
        """Whether all processes that would run a step take commands. Raises :class:`~llmk.api.EngineDead` where no more
        steps can be run."""
        return self.runner.answers()

    def close(self) -> None:
        """Ends what runs the steps. Idempotent."""
        if self._grammars is not None:
            self._grammars.close()
        self.runner.close()

    def add(self, request: EngineRequest) -> None:
        """Queues a sequence, once its grammar is started if it has one."""
        if request.params.structured_outputs is None:
            self.scheduler.add(request)
        elif self._grammars is None:
            why = f"{PARAM} can't be enforced: this engine was made without what starts grammars"
            self.scheduler.live.refuse(request, RequestError(why, param=PARAM))
        else:
            self._grammars.add(request)

    def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences without further output."""
        ids = list(ids)
        self.scheduler.abort(ids)
        if self._grammars is not None:
            self._grammars.abort(ids)

    def unpin(self, ids: Iterable[str]) -> None:
        """Ends pins."""
        for id in ids:
            self.scheduler.pins.drop(id)

    def spare_seconds(self) -> float:
        """How long the next :meth:`step` may be put off, so that sequences that arrive meanwhile are part of it; 0 as
        soon as the device waits for it."""
        if self._issue_time is None or len(self._in_flight) != 1 or self._deferred is not None:
            return 0.0
        running, now = self._in_flight[0], self._clock()
        if running.ended:
            return 0.0
        started = max(running.issued, self._received)
        prompts = self._has_prompts or bool(self.scheduler.waiting)
        spare = self._issue_time.spare(running.num_tokens, started, now, prompts=prompts, expected=running.expected)
        if not spare:
            return 0.0
        if _is_done(running.pending):
            running.ended = now if running.put_off else 0.0
            return 0.0
        running.put_off = True
        return spare

    def step(self, announce: Callable[[EngineOutputs], None] | None = None) -> EngineOutputs:
        """Issues one step if there is one to issue, and takes in the oldest result if no more may be in flight.

        ``announce`` is called with the sequences that enter the batch before the step runs, which may never return.
        Raises :class:`~llmk.api.EngineDead` where the device is gone, or fails every step.
        """
        outputs: list[TokenOutput] = []
        if self._grammars is not None and self._grammars.num_starting:
            self._queue_started()
        started, self._away, num_tokens = self._clock(), 0.0, 0
        since = self._ended if self._in_flight else started
        plan = self._schedule()
        if plan is not None:
            if announce is not None and plan.new:
                announce(EngineOutputs(admitted=[request.id for request in plan.new], stats=self.stats))
            if self._deferred is not None:
                outputs += self._sample(self._deferred)
            outputs += self._issue(plan)
        if self._in_flight and (plan is None or len(self._in_flight) >= self.depth):
            if self._deferred is not None and len(self._in_flight) == 1:
                outputs += self._sample(self._deferred)
            if self._in_flight:
                num_tokens = self._in_flight[0].num_tokens
                outputs += self._receive_oldest()
        outputs += self.scheduler.take_failures()
        stats, now = self.stats, self._clock()
        times = StepTimes(num_tokens, now - since, now - started - self._away) if num_tokens else None
        self._ended = now
        if times is not None and self._issue_time is not None:
            self._issue_time.take_host(times.host_seconds, prompts=self._has_prompts)
        blocks, ranks = self.scheduler.cache.take_events(), self.runner.take_ranks()
        return EngineOutputs(outputs=outputs, stats=stats, time=now, step=times, blocks=blocks, ranks=ranks)

    def prepare(self) -> None:
        """Makes later steps faster, while there is no work: has the device record one more kind of step. Raises
        :class:`~llmk.api.EngineDead` where no more steps can be run."""
        try:
            left = self.runner.submit(StepPlan(step=_PREPARATION, record=True)).result().unrecorded
        except EngineDead:
            raise
        except Exception as error:
            logger.warning("no more steps are recorded: %s", error)
            left = 0
        self.can_prepare = left > 0

    def _queue_started(self) -> None:
        """Queues the sequences whose grammars are started; waits a little for one where nothing else can be done."""
        grammars, scheduler = self._grammars, self.scheduler
        assert grammars is not None, "it has sequences"
        for started in grammars.take(0.0 if scheduler.has_work else _GRAMMAR_SECONDS):
            if started.error is None:
                scheduler.add(started.request, started.grammar)
            else:
                scheduler.live.refuse(started.request, started.error)
        if late := scheduler.deadlines:
            refused = [one.id for one, age in grammars.ages() if scheduler.live.refuse_late(one, age, late)]
            grammars.abort(refused)

    def _issue(self, plan: StepPlan) -> list[TokenOutput]:
        try:
            num_tokens = plan.num_tokens
            self._has_prompts = num_tokens > len(plan.work)
            expected = self.scheduler.expected_seconds() if self._has_prompts else 0.0
            issued = self._clock()
            self._in_flight.append(_InFlight(self._submit(plan), num_tokens, issued, expected))
            self._deferred = plan.step if plan.deferred else None
        except BaseException as error:
            return self._fail(plan.step, error)
        return []

    def _sample(self, step: int) -> list[TokenOutput]:
        """Samples the newest step, which waits for masks. These need the tokens of all steps before it, and are filled
        while the device computes its logits."""
        outputs: list[TokenOutput] = []
        self._deferred = None
        while len(self._in_flight) > 1:
            outputs += self._receive_oldest()
        try:
            self._sample_masked(self._fill_masks(step))
        except BaseException as error:
            self._in_flight.pop()
            outputs += self._fail(step, error)
        return outputs

    def _receive_oldest(self) -> list[TokenOutput]:
        """Waits for the oldest step in flight, and takes in its result."""
        step = self._in_flight.popleft()
        waiting = self._clock()
        try:
            result = self._wait(step.pending)
        except BaseException as error:
            return self._fail(step.pending.step, error)
        now = self._clock()
        started, self._received = max(step.issued, self._received), step.ended or now
        seconds = self._received - started
        if self._issue_time is not None and step.num_tokens:
            if step.ended or now - waiting > _WAITED:
                self._issue_time.take(step.num_tokens, seconds, expected=step.expected)
            elif step.put_off:
                self._issue_time.take_late(step.num_tokens, expected=step.expected)
        if result.tokens or result.scored or result.hidden:
            self._failures = 0
        add_counts(self.scheduler.stats.shadows, result.shadows)
        outputs = self._update(result)
        if step.num_tokens:
            self.scheduler.measure(step.num_tokens, seconds)
        return outputs

    def _counted(self, part: Callable[[S], T]) -> Callable[[S], T]:
        """``part``, whose time is not the host's."""

        def counted(subject: S) -> T:
            start = self._clock()
            result = part(subject)
            self._away += self._clock() - start
            return result

        return counted

    def _fail(self, step: int, error: BaseException) -> list[TokenOutput]:
        """An exception in the forward pass ends the step's sequences with its true cause; the engine goes on.

        So it does after an interruption from outside, which is raised again, as is the end of the device.
        """
        request_ids = self.scheduler.requests_in(step)
        cause = str(error) if isinstance(error, LlmkError) else f"{type(error).__name__}: {error}"
        outputs = self.scheduler.fail(step, cause)
        if isinstance(error, EngineDead) or not isinstance(error, Exception):
            raise error
        logger.error("step %d failed", step, exc_info=error, extra={"request_ids": request_ids})
        self._failures += bool(outputs)  # a step in flight after one that failed may have no sequences left
        if self._failures >= MAX_FAILURES:
            raise EngineDead(f"{self._failures} steps in a row failed, the last one with {cause}") from error
        return outputs


def _result(pending: PendingStep) -> StepResult:
    return pending.result()


def _is_done(pending: PendingStep) -> bool:
    """Whether the step has ended. One that can't say so (a device that failed, an executor of a wheel) is waited for,
    and :meth:`~llmk.engine.execution.executor.PendingStep.result` raises what is wrong."""
    try:
        return bool(pending.is_done())
    except Exception:
        return True
