"""First come, first served."""

from __future__ import annotations

from llmk.api import PolicyContext, SchedulingPolicy


class Fcfs(SchedulingPolicy):
    """By arrival; who came last gives way when blocks run out. This is what the contract does by itself."""

    def __init__(self, context: PolicyContext) -> None:
        pass
