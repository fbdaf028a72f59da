"""The runner of one stage of several: the last one samples, and the first must know what, for its next step.
Where drafts are verified, all must know how many were accepted."""

from __future__ import annotations

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


class StageRunner(Runner):
    """A runner whose model is a stage."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parallel = self.build.parallel
        self._awaited: tuple[PendingReceive, Tensor, Tensor, DraftRows | None] | None = None
        """The arrival of what was sampled, of which slots, where it arrives, and the drafts among it."""

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingResult:
        """As :meth:`Runner.submit`, but on all stages; first puts what the step before sampled where this one reads
        it."""
        if self._awaited is not None:
            (arrival, slots, token_ids, drafts), self._awaited = self._awaited, None
            arrival.wait()
            self._keep(slots, token_ids, drafts)
        return super().submit(plan)

    def _recorded(self, shape: StepShape, slots: Tensor, counts: Tensor, samples: Tensor) -> Recorded:
        if self._parallel.is_last:
            return super()._recorded(shape, slots, counts, samples)
        hidden = self._recorded_hidden(shape, slots, counts)[1]
        return Recorded(hidden, logits=hidden, token_ids=slots, readback=slots)  # no more than hidden is used

    def _replayed_decode(self, plan: StepPlan) -> PendingResult:
        if self._parallel.is_last:
            return super()._replayed_decode(plan)
        index, _ = self._decode([work.slot for work in plan.work], self._variant(plan))
        self._await_sampled(index)
        return PendingResult(plan.step, None)

    def _finish(self, plan: StepPlan, step: LaidOutStep, hidden: Tensor) -> PendingResult:
        if self._parallel.is_last:
            return super()._finish(plan, step, hidden)
        if step.sampled.slots:
            self._await_sampled(step.sampled.index, step.drafts)
        return PendingResult(plan.step, None)

    def _await_sampled(self, slots: Tensor, drafts: DraftRows | None = None) -> None:
        """Starts to receive what the last stage samples for ``slots``, if this one needs it."""
        if self._parallel.is_first or drafts is not None:
            token_ids = torch.empty_like(slots)
            arrival = self._parallel.receive(token_ids, self._parallel.num_stages - 1)
            self._awaited = arrival, slots, token_ids, drafts

    def _pass_on(self, token_ids: Tensor, drafts: DraftRows | None = None) -> None:
        """Sends what was sampled to the first stage, which embeds it; with drafts to all, which compare them."""
        for stage in range(1 if drafts is None else self._parallel.num_stages - 1):
            self._parallel.send(token_ids, stage)
