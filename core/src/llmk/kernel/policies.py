"""Which scheduling policy orders requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmk.api import OK, Choice, Piece, PolicySpec, Reason, Rejection, SelectionError
from llmk.kernel.election import elect
from llmk.kernel.ranking import END
from llmk.kernel.registry import Registry

if TYPE_CHECKING:
    from llmk.config import Config

KIND, SITE = "policy", "scheduler"
LINE = "[select.policy]"


def choose_policy(registry: Registry, config: Config, excluded: Mapping[str, Reason]) -> Choice:
    """The choice for the scheduler, as the plan shows it.

    Raises SelectionError where the policy is not installed, can't be imported (``excluded``) or ties with another.
    """
    rules = config.select.policy
    policies = registry.of(PolicySpec)
    chosen, why = elect(LINE, rules, [(policy, OK) for policy in policies])
    if chosen is None:
        raise SelectionError("no scheduling policy is left to choose", hint=f'{LINE} use = "fcfs" names one')
    spec, plugin = chosen.spec, chosen.plugin
    if spec.id in excluded:
        what = f"the scheduling policy {spec.id} of {plugin.wheel} can't be used"
        raise SelectionError(what, reasons=[excluded[spec.id]], hint=f"name another with {LINE} use, or mend the wheel")
    piece = Piece(1, END, spec.id, plugin.distribution, plugin.version, spec.implementation, "", "", why)
    others = [r for r in policies if r is not chosen]
    rejected = tuple(Rejection(r.spec.id, r.plugin.distribution, (Reason("not_chosen", found=why),)) for r in others)
    return Choice(KIND, SITE, "", None, (piece,), rejected)
