"""The contract of what carries out steps. Needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from llmk.engine.wire.rank_stats import RankStats
from llmk.engine.wire.step import Masks, StepPlan, StepResult


class PendingStep(Protocol):
    """A step that was issued to a device."""

    step: int

    def is_done(self) -> bool:
        """Whether :meth:`result` would return at once."""
        ...

    def result(self) -> StepResult:
        """Waits for the step's tokens."""
        ...


class Executor(Protocol):
    """What carries out steps, in the order in which they are submitted: this process, or several.

    ``asynchronous`` says, in words, why steps run while the host does something else (they run on a device that is
    issued work, or in other processes); it is empty where :meth:`submit` itself runs them.
    """

    asynchronous: str

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingStep:
        """Issues a step without waiting for it; of a deferred plan, all but sampling (:meth:`sample`).

        What of the plan is read after this returns must be copied: the scheduler goes on with its lists. Raises
        :class:`~llmk.api.EngineDead` where no more can be run, and so does what is pending.
        """
        ...

    @abstractmethod
    def sample(self, masks: Masks) -> None:
        """Samples the step that was submitted last, whose plan is deferred: after the results of all steps before it,
        and before the next step. Raises what :meth:`submit` does."""
        ...

    def check(self) -> None:
        """Raises :class:`~llmk.api.EngineDead` where no more steps can be run."""
        return

    def answers(self) -> bool:
        """Whether all processes that would run a step take commands. Raises what :meth:`check` raises."""
        self.check()
        return True

    def take_ranks(self) -> list[RankStats]:
        """What ranks have measured of themselves since this was called last, of those that have reported since."""
        return []

    def close(self) -> None:
        """Ends what it started, if anything. Idempotent."""
        return
