"""A scheduling policy under guard: what it answers is checked, and it is replaced when it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from llmk.api import Plan, PluginError, PolicyContext, SchedulingPolicy, Ticket
from llmk.api.errors import describe
from llmk.api.verdict import Reason
from llmk.engine.fair import BuiltIn
from llmk.kernel.loader import load_object

logger = logging.getLogger(__name__)

Tickets = tuple[Ticket, ...]


class GuardedPolicy:
    """Asks ``policy``, which is the built-in one where none is named.

    A policy that raises, or answers with what it was not asked about, is reported with its traceback, and the built-in
    one is asked from then on. ``failures`` counts it, so that metrics show that the engine runs without what was
    configured.
    """

    def __init__(self, policy: SchedulingPolicy | None = None, name: str = "") -> None:
        self.name = name
        self.failures = 0
        self._policy = policy or BuiltIn()

    @classmethod
    def load(cls, plan: Plan, context: PolicyContext) -> GuardedPolicy:
        """Makes the policy that the plan chose. Raises PluginError where it can't be imported or made."""
        (piece,) = plan.choice("policy", "scheduler").pieces
        wheel = f"{piece.distribution} {piece.version}"
        made = load_object(piece.implementation, plugin=wheel)
        try:
            return cls(made(context), f"{piece.id} of {wheel}")
        except Exception as error:
            reason = Reason("policy_raised", piece.implementation, describe(error))
            hint = "name another policy with [select.policy] use"
            raise PluginError(f"{piece.id} of {wheel} can't be made", reasons=[reason], hint=hint) from error

    def order(self, requests: Tickets) -> Iterator[Ticket]:
        """Each of ``requests`` once, lazily."""
        left = set(requests)
        try:
            for ticket in self._policy.order(requests) if requests else ():
                if ticket not in left:
                    raise ValueError(f"order() named {ticket!r} twice, or unasked")
                left.remove(ticket)
                yield ticket
        except Exception as error:
            self._give_up(error)
        yield from [ticket for ticket in requests if ticket in left] if left else ()

    def victim(self, running: Tickets) -> Ticket:
        """One of ``running``."""
        try:
            return _one_of(running, self._policy.victim(running), "victim")
        except Exception as error:
            self._give_up(error)
        return self._policy.victim(running)

    def displaced(self, running: Tickets, newcomer: Ticket) -> Ticket | None:
        """One of ``running``, or ``None``."""
        try:
            if running:
                victim = self._policy.displaced(running, newcomer)
                return None if victim is None else _one_of(running, victim, "displaced")
        except Exception as error:
            self._give_up(error)
        return None

    @property
    def displaces(self) -> bool:
        """Whether asking :meth:`displaced` can have an effect."""
        return type(self._policy).displaced is not SchedulingPolicy.displaced

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Tells the policy."""
        try:
            self._policy.computed(request, num_tokens)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._policy = BuiltIn()
        self.failures += 1
        logger.error(
            "the scheduling policy %s failed (%s); requests go by priority and arrival until the engine is restarted",
            self.name, describe(error), exc_info=error,
        )  # fmt: skip


def _one_of(running: Tickets, answer: Ticket, what: str) -> Ticket:
    if answer in running:
        return answer
    raise ValueError(f"{what}() named {answer!r}, which was not among those it was asked about")
