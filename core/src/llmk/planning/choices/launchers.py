"""Chooses what starts the processes of a model: the engine itself, on this machine, or a launcher of a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmk.api import (
    Choice,
    LauncherSpec,
    LaunchQuery,
    Piece,
    Plan,
    PlatformFacts,
    Reason,
    Rejection,
    SelectionError,
)
from llmk.api.matching import evaluate
from llmk.kernel.registry import Registry
from llmk.planning.ranking import END
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config

KIND, LINE = "launcher", "[select.launcher]"


def choose_launcher(registry: Registry, config: Config, platform: PlatformFacts) -> Choice | None:
    """The choice of a launcher for the plan; ``None``: the engine itself starts the ranks, as it does unless another is
    pinned or preferred. Raises SelectionError if one that is pinned can't serve."""
    rules, parallel = config.select.launcher, config.parallel
    if not (rules.use or rules.prefer):
        return None
    query = LaunchQuery(platform=platform, tensor=parallel.tensor, pipeline=parallel.pipeline)
    claims = [(found, evaluate(found.spec.supports, query)) for found in registry.of(LauncherSpec)]
    if not rules.use:
        claims = [(found, verdict) for found, verdict in claims if found.spec.id in rules.prefer]
    chosen, why = elect(LINE, rules, claims)
    if chosen is None:
        return None
    refused = (
        Rejection(found.spec.id, found.plugin.distribution, verdict.reasons or (Reason("not_chosen", found=why),))
        for found, verdict in claims
        if found is not chosen
    )
    spec, plugin = chosen.spec, chosen.plugin
    piece = Piece(1, END, spec.id, plugin.distribution, plugin.version, spec.implementation, "", "", why)
    return Choice(KIND, KIND, "", None, (piece,), tuple(refused))


def launcher_of(plan: Plan) -> Choice | None:
    """The choice of a launcher; ``None`` where the engine itself starts the ranks."""
    return next((choice for choice in plan.choices if choice.kind == KIND), None)


def check_starts(launcher: Choice | None, executor: Choice | None) -> None:
    """Raises SelectionError where the plan has a launcher, and an executor that runs in the engine's process."""
    if launcher is not None and executor is not None:
        raise SelectionError(
            f"{launcher.id} starts processes that run the engine's own steps, and {executor.id} runs the steps itself",
            hint='leave out [select.launcher] use, or [select.executor] use = ""',
        )
