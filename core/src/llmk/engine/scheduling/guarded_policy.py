"""A scheduling policy whose results are checked, and which is replaced when it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from llmk.api import Plan, PluginError, PolicyContext, SchedulingPolicy, Ticket
from llmk.api.errors import describe
from llmk.api.verdict import Reason
from llmk.engine.scheduling.fair_policy import FairPolicy
from llmk.engine.wire.plugin_calls import POLICY, Call, is_distrusted, is_interrupt
from llmk.kernel.loader import load_object

logger = logging.getLogger(__name__)

Tickets = tuple[Ticket, ...]
METHODS = ("order", "victim", "displaced", "computed")
"""The methods of a policy."""


class GuardedPolicy:
    """Calls ``policy``; without one, the built-in policy.

    A policy that raises, or returns a request that is not among those it was given, is logged with its traceback, and
    the built-in policy is called from then on. ``failures`` counts it, so that metrics show that the engine runs
    without the configured policy. Methods that a policy lacks are those of :class:`~llmk.api.SchedulingPolicy`.
    """

    def __init__(self, policy: SchedulingPolicy | None = None, name: str = "", wheel: str = "") -> None:
        self.name = f"{name} of {wheel}" if wheel else name
        self.failures = 0
        self._call: AbstractContextManager[None] = Call(POLICY, name, wheel)
        self._use(policy or FairPolicy())

    def _use(self, policy: SchedulingPolicy) -> None:
        methods = {
            name: getattr(policy, name, None) or partial(getattr(SchedulingPolicy, name), policy) for name in METHODS
        }
        self._order, self._victim, self._displaced, self._computed = methods.values()
        own = getattr(type(policy), "displaced", SchedulingPolicy.displaced)
        self.displaces = own is not SchedulingPolicy.displaced
        """Whether calling :meth:`displaced` can have an effect."""
        if isinstance(policy, FairPolicy):
            self._call = nullcontext()  # no plugin's code to watch

    @classmethod
    def load(cls, plan: Plan, context: PolicyContext) -> GuardedPolicy:
        """Makes the policy that the plan chose, or the built-in one where that ended an engine before. Raises
        PluginError where it can't be imported or made, or is not a policy."""
        (piece,) = plan.choice("policy", "scheduler").pieces
        wheel = f"{piece.distribution} {piece.version}"
        if is_distrusted(piece.id):
            fallen = cls(None, piece.id, wheel)
            fallen.failures = 1
            return fallen
        hint = "name another policy with [select.policy] use"
        make = load_object(piece.implementation, plugin=wheel, kind="policy", id=piece.id)
        try:
            policy = make(context)
        except PluginError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            reason = Reason("policy_raised", piece.implementation, describe(error))
            raise PluginError(f"{piece.id} of {wheel} can't be made", reasons=[reason], hint=hint) from error
        return cls(policy, piece.id, wheel)

    def order(self, requests: Tickets) -> Iterator[Ticket]:
        """Each of ``requests`` once, lazily."""
        left = {id(ticket): ticket for ticket in requests}
        ordered: Iterator[Ticket] | None = None
        while left:
            try:
                with self._call:
                    ordered = iter(self._order(requests)) if ordered is None else ordered
                    ticket = next(ordered, None)
                if ticket is None:
                    break
                if id(ticket) not in left:
                    raise ValueError(f"order() returned {ticket!r} twice, or it was not among the requests")
            except BaseException as error:
                self._give_up(error)
                break
            yield left.pop(id(ticket))
        yield from left.values()

    def victim(self, running: Tickets) -> Ticket:
        """One of ``running``."""
        try:
            with self._call:
                answer = self._victim(running)
            return _one_of(running, answer, "victim")
        except BaseException as error:
            self._give_up(error)
        return FairPolicy().victim(running)

    def displaced(self, running: Tickets, newcomer: Ticket) -> Ticket | None:
        """One of ``running``, or ``None``."""
        if not running:
            return None
        try:
            with self._call:
                victim = self._displaced(running, newcomer)
            return None if victim is None else _one_of(running, victim, "displaced")
        except BaseException as error:
            self._give_up(error)
        return None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        """Reports computed tokens to the policy."""
        try:
            with self._call:
                self._computed(request, num_tokens)
        except BaseException as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        if is_interrupt(error):
            raise error
        self._use(FairPolicy())
        self.failures += 1
        logger.error(
            "the scheduling policy %s failed (%s); requests go by priority and arrival until the engine is restarted",
            self.name, describe(error), exc_info=error,
        )  # fmt: skip


def _one_of(running: Tickets, answer: object, what: str) -> Ticket:
    for ticket in running:
        if ticket is answer:
            return ticket
    raise ValueError(f"{what}() returned {answer!r}, which was not among the requests it was given")
