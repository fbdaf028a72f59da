"""The runner of one stage of several: the last one samples, and the first must know what, for its next step.
Where drafts are verified, all must know how many were accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
        self._awaited: tuple[PendingReceive, LaidOutStep, Tensor] | None = None
        """The arrival of what was sampled, of which step, and where it arrives."""

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingResult:
        """As :meth:`Runner.submit`, but on all stages; first puts what the step before sampled where this one reads
        it."""
        if self._awaited is not None:
            (arrival, step, token_ids), self._awaited = self._awaited, None
            arrival.wait()
            super()._keep(step.sampled.index, token_ids, step.drafts)
        return super().submit(plan)

    def _finish(self, plan: StepPlan, step: LaidOutStep, hidden: Tensor) -> PendingResult:
        if self._parallel.is_last:
            return super()._finish(plan, step, hidden)
        if step.sampled.slots and (self._parallel.is_first or step.drafts is not None):
            token_ids = torch.empty_like(step.sampled.index)
            self._awaited = self._parallel.receive(token_ids, self._parallel.num_stages - 1), step, token_ids
        return PendingResult(plan.step, None)

    def _keep(self, slots: Tensor, token_ids: Tensor, drafts: DraftRows | None = None) -> Tensor | None:
        """Sends what was sampled to the first stage, which embeds it; with drafts to all, which compare them."""
        gained = super()._keep(slots, token_ids, drafts)
        for stage in range(1 if drafts is None else self._parallel.num_stages - 1):
            self._parallel.send(token_ids, stage)
        return gained
