"""Chooses what is only used where the configuration names it: the scheduling policy, and the router of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from llmk.api import OK, Choice, Piece, PolicySpec, Reason, Rejection, RouterSpec, Verdict
from llmk.kernel.discovery import CORE
from llmk.kernel.registry import Registry
from llmk.planning.ranking import END
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config
    from llmk.config.schema import SelectSection

BUILT_IN = "core.built_in"
BUILT_IN_POLICY = "llmk.engine.scheduling.fair_policy:FairPolicy"
BUILT_IN_ROUTER = "llmk.engine.routing.least_work:LeastWork"


def choose_policy(registry: Registry, config: Config, excluded: Mapping[str, Reason]) -> Choice:
    """The choice of the scheduling policy for the plan: the built-in one, unless another is pinned or preferred.

    Raises SelectionError if the policy is not installed, can't be imported (``excluded``), or ties with another.
    """
    what = "policy", "scheduler", BUILT_IN_POLICY
    return _choose(registry, PolicySpec, config.select.policy, what, excluded)


def choose_router(registry: Registry, config: Config, excluded: Mapping[str, Reason]) -> Choice | None:
    """The choice of the router, by the same rules; ``None`` where there is one replica."""
    if config.replicas.count == 1:
        return None
    return _choose(registry, RouterSpec, config.select.router, ("router", "replicas", BUILT_IN_ROUTER), excluded)


def router_of(plan_choices: tuple[Choice, ...]) -> Choice | None:
    """The choice of the router among all of a plan."""
    return next((choice for choice in plan_choices if choice.kind == "router"), None)


def _choose(
    registry: Registry,
    kind: type[PolicySpec | RouterSpec],
    rules: SelectSection,
    what: tuple[str, str, str],
    excluded: Mapping[str, Reason],
) -> Choice:
    """``what``: the choice's kind and site, and what is built in."""
    name, site, built_in = what
    known = registry.of(kind)
    bad = {id: Verdict(False, (reason,)) for id, reason in excluded.items()}
    named = [found for found in known if rules.use or found.spec.id in rules.prefer]
    chosen, why = elect(f"[select.{name}]", rules, [(found, bad.get(found.spec.id, OK)) for found in named])
    if chosen is None:
        why = f"built in; [select.{name}] use names no other"
        piece = Piece(1, END, BUILT_IN, CORE, metadata.version(CORE), built_in, "", "", why)
    else:
        spec, plugin = chosen.spec, chosen.plugin
        piece = Piece(1, END, spec.id, plugin.distribution, plugin.version, spec.implementation, "", "", why)
    others = [r for r in known if r is not chosen]
    rejected = tuple(Rejection(r.spec.id, r.plugin.distribution, (Reason("not_chosen", found=why),)) for r in others)
    return Choice(name, site, "", None, (piece,), rejected)
