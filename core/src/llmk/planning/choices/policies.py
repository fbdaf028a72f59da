"""Chooses the scheduling policy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from llmk.api import OK, Choice, Piece, PolicySpec, Reason, Rejection, Verdict
from llmk.kernel.discovery import CORE
from llmk.kernel.registry import Registry
from llmk.planning.ranking import END
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config

LINE = "[select.policy]"
BUILT_IN, BUILT_IN_CLASS = "core.built_in", "llmk.engine.scheduling.fair_policy:FairPolicy"


def choose_policy(registry: Registry, config: Config, excluded: Mapping[str, Reason]) -> Choice:
    """The choice of the scheduling policy for the plan: the built-in one, unless another is pinned or preferred.

    Raises SelectionError if the policy is not installed, can't be imported (``excluded``), or ties with another.
    """
    rules = config.select.policy
    policies = registry.of(PolicySpec)
    bad = {id: Verdict(False, (reason,)) for id, reason in excluded.items()}
    named = [policy for policy in policies if rules.use or policy.spec.id in rules.prefer]
    chosen, why = elect(LINE, rules, [(policy, bad.get(policy.spec.id, OK)) for policy in named])
    if chosen is None:
        why = f"built in; {LINE} use names no other"
        piece = Piece(1, END, BUILT_IN, CORE, metadata.version(CORE), BUILT_IN_CLASS, "", "", why)
    else:
        spec, plugin = chosen.spec, chosen.plugin
        piece = Piece(1, END, spec.id, plugin.distribution, plugin.version, spec.implementation, "", "", why)
    others = [r for r in policies if r is not chosen]
    rejected = tuple(Rejection(r.spec.id, r.plugin.distribution, (Reason("not_chosen", found=why),)) for r in others)
    return Choice("policy", "scheduler", "", None, (piece,), rejected)
