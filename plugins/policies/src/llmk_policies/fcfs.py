"""First come, first served."""

from __future__ import annotations

from llmk.api import PolicyContext, SchedulingPolicy


class Fcfs(SchedulingPolicy):
    """By arrival; when blocks run out, the latest request is preempted. These are the defaults of the contract."""

    def __init__(self, context: PolicyContext) -> None:
        pass
