"""A scheduling policy under guard: what it answers is checked, and it is replaced when it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from llmk.api import Plan, PluginError, PolicyContext, SchedulingPolicy, Ticket
from llmk.api.errors import describe
from llmk.api.verdict import Reason
from llmk.kernel.loader import load_object

logger = logging.getLogger(__name__)

Tickets = tuple[Ticket, ...]


class GuardedPolicy:
    """Asks ``policy``, and goes by arrival where there is none.

    A policy that raises, or answers with what it was not asked about, is reported with its traceback and not asked
    again. ``failures`` counts it, so that metrics show that the engine runs without what was configured.
    """

    def __init__(self, policy: SchedulingPolicy | None = None, name: str = "") -> None:
        self.name = name
        self.failures = 0
        self._policy = policy
        self._computed = None if policy is None or _inherits(policy, "computed") else policy.computed

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
        policy = self._policy
        if policy is None or not requests:
            yield from requests
            return
        left = set(requests)
        try:
            for ticket in policy.order(requests):
                if ticket not in left:
                    raise ValueError(f"order() named {ticket!r} twice, or unasked")
                left.remove(ticket)
                yield ticket
        except Exception as error:
            self._give_up(error)
        if left:
            yield from [ticket for ticket in requests if ticket in left]

    def victim(self, running: Tickets) -> Ticket:
        """One of ``running``."""
        try:
            if self._policy is not None:
                return _one_of(running, self._policy.victim(running), "victim")
        except Exception as error:
            self._give_up(error)
        return running[-1]

    def displaced(self, running: Tickets, newcomer: Ticket) -> Ticket | None:
        """One of ``running``, or ``None``."""
        try:
            if self._policy is not None and running:
                victim = self._policy.displaced(running, newcomer)
                return None if victim is None else _one_of(running, victim, "displaced")
        except Exception as error:
            self._give_up(error)
        return None

    @property
    def displaces(self) -> bool:
        """Whether asking :meth:`displaced` can have an effect."""
        return self._policy is not None and not _inherits(self._policy, "displaced")

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Tells the policy, if it listens."""
        if self._computed is not None:
            try:
                self._computed(request, num_tokens)
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._policy = self._computed = None
        self.failures += 1
        logger.error(
            "the scheduling policy %s failed (%s); requests go by arrival until the engine is restarted",
            self.name, describe(error), exc_info=error,
        )  # fmt: skip


def _one_of(running: Tickets, answer: Ticket, what: str) -> Ticket:
    for ticket in running:
        if ticket is answer:
            return ticket
    raise ValueError(f"{what}() named {answer!r}, which was not among those it was asked about")


def _inherits(policy: SchedulingPolicy, method: str) -> bool:
    """Whether a policy leaves a method as the contract has it."""
    return getattr(type(policy), method, None) is getattr(SchedulingPolicy, method)
