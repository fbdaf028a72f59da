"""A step from its plan to its result."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmk.engine.wire.step import StepPlan, Work

if TYPE_CHECKING:
    from llmk.engine.scheduling.guarded_policy import GuardedPolicy
    from llmk.engine.scheduling.sequence import Sequence

Entry = tuple["Sequence", int, int, bool]
"""A sequence, the admission under which a step computes it, its length in the cache after the step if all drafts are
accepted, and whether it is sampled."""


@dataclass(slots=True, eq=False)
class IssuedStep:
    """A step that is being planned, or whose result has not arrived. ``budget`` is how many more tokens it may compute;
    ``room`` is for how many more operations for prompts there is time; it has ``operations`` for ``prompt_tokens``.
    ``entries`` has one entry per work item of the plan, in their order."""

    plan: StepPlan
    policy: GuardedPolicy
    budget: int
    room: float = math.inf
    operations: float = 0.0
    prompt_tokens: int = 0
    entries: list[Entry] = field(default_factory=list)

    def issue(self, sequence: Sequence, count: int, num_drafts: int = 0, drafts: Iterable[int] = ()) -> None:
        """Has the step compute the next ``count`` tokens of a sequence, of which the last ``num_drafts`` are drafts
        behind its last token: ``drafts``, or where that is empty, what the device drafts."""
        plan, before = self.plan, sequence.num_computed
        self.budget -= count
        sequence.num_computed = computed = before + count
        sequence.issued = plan.step
        known = len(sequence.tokens) + sequence.num_pending + num_drafts
        sample = computed == known and sequence.request.returns == "tokens"
        if sample:
            sequence.num_pending += 1 + num_drafts
        new_blocks = sequence.tables.take_new_blocks()
        work = Work(slot=sequence.slot, before=before, num_tokens=count, new_blocks=new_blocks, sample=sample)
        if num_drafts or sequence.drafts is not None:
            work.num_drafts, work.drafts, work.num_uncertain = num_drafts, tuple(drafts), sequence.num_uncertain
            sequence.num_uncertain += num_drafts
            plan.speculative |= bool(sequence.num_uncertain or sequence.num_late)
        if sample and sequence.grammar is not None:
            work.masked = plan.deferred = True
        plan.work.append(work)
        self.entries.append((sequence, sequence.admissions, computed, sample))
        self.policy.computed(sequence.ticket, count)
