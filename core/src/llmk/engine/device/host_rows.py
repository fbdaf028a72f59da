"""What the host knows of the rows of a step at which tokens are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from llmk.engine.wire.step import StepPlan


@dataclass(frozen=True, slots=True)
class HostRows:
    """The sampled rows of a step that verifies drafts, or whose lengths may be upper bounds.

    Attributes:
        items: the work items that are sampled, by number.
        counts: how many rows each of them has: 1, and 1 per draft. Their rows follow each other.
        starts: the first row of each.
        row_items, slots, behind: of each row, its work item, its slot, and how many of the step's tokens of that slot
            stand behind it.
        fewest, most: bounds of the tokens up to each row's own, itself included.
    """

    items: list[int]
    counts: list[int]
    starts: list[int]
    row_items: list[int]
    slots: list[int]
    behind: list[int]
    fewest: list[int]
    most: list[int]

    @classmethod
    def of(cls, plan: StepPlan) -> HostRows:
        """The rows of a plan."""
        work, items = plan.work, plan.sampled_work
        counts = [1 + work[item].num_drafts for item in items]
        behind = [back for count in counts for back in range(count - 1, -1, -1)]
        row_items = [item for item, count in zip(items, counts, strict=True) for _ in range(count)]
        owners = [work[item] for item in row_items]
        most = [own.before + own.num_tokens - back for own, back in zip(owners, behind, strict=True)]
        return cls(
            items=items,
            counts=counts,
            starts=list(accumulate(counts, initial=0))[:-1],
            row_items=row_items,
            slots=[own.slot for own in owners],
            behind=behind,
            fewest=[bound - own.num_uncertain for bound, own in zip(most, owners, strict=True)],
            most=most,
        )
