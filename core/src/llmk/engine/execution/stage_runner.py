"""The runner of one stage of several: the last one samples, and the first must know what, for its next step.
Where drafts are verified, all must know how many were accepted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.engine.device.graphs import Recorded, StepShape
from llmk.engine.execution.pending_result import PendingResult
from llmk.engine.execution.runner import Runner

if TYPE_CHECKING:
    from llmk.engine.device.batch import DraftRows, LaidOutStep
    from llmk.engine.wire.step import StepPlan
    from llmk.nn.parallel import PendingReceive


@dataclass(frozen=True, slots=True)
class _Arrival:
    """What a step sampled, on its way from the last stage."""

    pending: PendingReceive
    slots: frozenset[int]
    index: Tensor
    """The slots, int64 on the device, one for each of ``token_ids``."""
    token_ids: Tensor
    drafts: DraftRows | None


class StageRunner(Runner):
    """A runner whose model is a stage."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parallel = self.build.parallel
        self._awaited: deque[_Arrival] = deque()
        """Of steps in flight, the oldest first."""

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingResult:
        """As :meth:`Runner.submit`, but on all stages; first puts what steps before sampled where this one reads it.

        It waits for no step whose slots it has nothing to do with, so that stages compute different steps at a time.
        """
        slots = {*plan.freed, *(request.slot for request in plan.new), *(work.slot for work in plan.work)}
        while any(not slots.isdisjoint(arrival.slots) for arrival in self._awaited):
            arrival = self._awaited.popleft()
            arrival.pending.wait()
            self._keep(arrival.index, arrival.token_ids, arrival.drafts)
        return super().submit(plan)

    def _recorded(self, shape: StepShape, slots: Tensor, counts: Tensor, samples: Tensor) -> Recorded:
        if self._parallel.is_last:
            return super()._recorded(shape, slots, counts, samples)
        hidden = self._recorded_hidden(shape, slots, counts)[1]
        return Recorded(hidden, logits=hidden, token_ids=slots, readback=slots)  # no more than hidden is used

    def _replayed_decode(self, plan: StepPlan) -> PendingResult:
        if self._parallel.is_last:
            return super()._replayed_decode(plan)
        slots = [work.slot for work in plan.work]
        index, _ = self._decode(slots, self._variant(plan))
        self._await_sampled(slots, index.clone())
        return PendingResult(plan.step, None)

    def _finish(self, plan: StepPlan, step: LaidOutStep, hidden: Tensor, whole: bool) -> PendingResult:
        if self._parallel.is_last:
            return super()._finish(plan, step, hidden, whole)
        if step.sampled.slots:
            self._await_sampled(step.sampled.slots, step.sampled.index, step.drafts)
        return PendingResult(plan.step, None)

    def _await_sampled(self, slots: Sequence[int], index: Tensor, drafts: DraftRows | None = None) -> None:
        """Starts to receive what the last stage samples for ``slots``, which ``index`` has, too, if this one needs
        it."""
        if self._parallel.is_first or drafts is not None:
            token_ids = torch.empty_like(index)
            pending = self._parallel.receive(token_ids, self._parallel.num_stages - 1)
            self._awaited.append(_Arrival(pending, frozenset(slots), index, token_ids, drafts))

    def _pass_on(self, token_ids: Tensor, drafts: DraftRows | None = None) -> None:
        """Sends what was sampled to the first stage, which embeds it; with drafts to all, which compare them."""
        for stage in range(1 if drafts is None else self._parallel.num_stages - 1):
            self._parallel.send(token_ids, stage)
