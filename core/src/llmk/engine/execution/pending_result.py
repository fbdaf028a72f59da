"""A step that was issued to a device, until its result is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from llmk.engine.wire.step import StepResult

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from llmk.engine.measuring.shadow_comparisons import PendingComparison
    from llmk.engine.sampling.prompt_logprobs import PendingLogprobs
    from llmk.engine.sampling.prompt_rows import PendingCopy
    from llmk.engine.sampling.sampler import Sampled


@dataclass(slots=True)
class PendingResult:
    """A step that was issued. Its tokens already stand where the next step reads them; :meth:`result` waits until the
    host's copies are ``done``. ``items`` are the numbers of the work items that are sampled. Each has one row, or where
    drafts are verified, ``counts`` rows, of which the first ``gained`` (int64, one per item) have tokens."""

    step: int
    sampled: Sampled | None
    scored: Sequence[PendingLogprobs] = ()
    hidden: Sequence[PendingCopy] = ()
    done: torch.Event | None = None
    items: Sequence[int] = ()
    gained: Tensor | None = None
    counts: Sequence[int] = ()
    compared: PendingComparison | None = None
    unrecorded: int = 0

    def is_done(self) -> bool:
        """Whether the device has ended the step; true where that can't be known without waiting."""
        return self.done is None or self.done.query()

    def result(self) -> StepResult:
        """Waits for the device and returns what was sampled."""
        if self.done is not None:
            self.done.synchronize()
        scored = {part.work: part.result() for part in self.scored}
        shadows = self.compared.result() if self.compared else []
        hidden = {part.work: part.result() for part in self.hidden}
        broken = [part.work for part in self.hidden if not part.rows.isfinite().all()]
        broken += [work for work, part in scored.items() if part.broken]
        result = StepResult(
            step=self.step,
            scored=scored,
            hidden=hidden,
            shadows=shadows,
            broken=broken,
            unrecorded=self.unrecorded,
        )
        if self.sampled is not None:
            self._read(self.sampled, result)
        return result

    def _read(self, sampled: Sampled, result: StepResult) -> None:
        token_ids, wrong = sampled.read()
        if self.gained is None:
            result.tokens = [[token] for token in token_ids]
            items = dict(enumerate(self.items)) if wrong or sampled.has_details else {}
        else:
            runs = list(zip(accumulate(self.counts, initial=0), self.gained.tolist(), self.items, strict=False))
            result.tokens = [token_ids[start : start + gained] for start, gained, _ in runs]
            items = {row: item for start, gained, item in runs for row in range(start, start + gained)}
        broken = {items[row]: problem for row, problem in wrong.items() if row in items}
        result.num_broken = len(broken)
        result.errors = broken | {items[row]: problem for row, problem in sampled.errors.items() if row in items}
        for row, entry in sampled.logprobs_by_row(token_ids).items():
            if row in items:
                result.logprobs.setdefault(items[row], []).append(entry)
