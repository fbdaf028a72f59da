"""Chooses what carries out steps: the engine itself, which calls the kernels of the plan, or an executor of a
plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llmk.api import (
    Choice,
    ExecutorQuery,
    ExecutorSpec,
    KernelSpec,
    Piece,
    Plan,
    PlatformFacts,
    Reason,
    Rejection,
    SelectionError,
    Verdict,
    no,
)
from llmk.api.matching import evaluate
from llmk.api.query import Query
from llmk.kernel.registry import Registered, Registry
from llmk.planning.ranking import END
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.config import Config

KIND, LINE = "executor", "[select.executor]"


def choose_executor(
    registry: Registry, config: Config, platform: PlatformFacts, ask: Callable[[], ExecutorQuery], uses: frozenset[str]
) -> Choice | None:
    """The choice of an executor for the plan; ``None``: the engine itself carries out steps, as it does unless another
    is pinned or preferred, or torch can't use the platform. ``ask`` makes what executors are asked; ``uses`` are
    features of the configuration (:attr:`llmk.api.ExecutorSpec.knows`).

    Raises SelectionError if none can run the model on a platform that torch can't use, or one that is pinned can't.
    """
    rules, needed = config.select.executor, not platform.device_type
    if not (needed or rules.use or rules.prefer):
        return None
    query, known = ask(), registry.of(ExecutorSpec)
    claims = [(found, _verdict(found.spec, query, uses)) for found in known]
    if not needed and not rules.use:
        claims = [(found, verdict) for found, verdict in claims if found.spec.id in rules.prefer]
    chosen, why = elect(LINE, rules, claims)
    if chosen is None and not needed:
        return None
    if chosen is None:
        raise SelectionError(
            f"torch can't use {platform.label}, and no installed executor runs {query.model.architecture} there",
            reasons=[reason.about(found.spec.id) for found, verdict in claims for reason in verdict.reasons],
            hint="name another platform with --platform.use, or another model",
        )
    refused = (
        Rejection(found.spec.id, found.plugin.distribution, verdict.reasons or (Reason("not_chosen", found=why),))
        for found, verdict in claims
        if found is not chosen
    )
    why = why if rules.use or rules.prefer else f"torch can't use {platform.label}"
    return Choice(KIND, KIND, "", None, (_piece(chosen, chosen.spec.implementation, why),), tuple(refused))


def executor_of(plan: Plan) -> Choice | None:
    """The choice of an executor; ``None`` where the engine itself carries out steps."""
    return next((choice for choice in plan.choices if choice.kind == KIND), None)


def check_loaded(chosen: Choice, excluded: Mapping[str, Reason]) -> None:
    """Raises SelectionError if an executor or a launcher can't be loaded: what could serve in its place has other
    abilities."""
    if chosen.id in excluded:
        reasons = [excluded[chosen.id].about(chosen.id)]
        other = "another platform with --platform.use" if chosen.kind == KIND else "none with --select.launcher.use"
        hint = f"fix its wheel and what it needs, or name {other}"
        raise SelectionError(f"the {chosen.kind} {chosen.id} can't be loaded", reasons=reasons, hint=hint)


def kernels_of(registry: Registry, executor: Choice) -> list[Registered[KernelSpec]]:
    """The executor's own kernels."""
    found = _registered(registry, executor)
    return [Registered(kernel, found.plugin, kernel.kind) for kernel in found.spec.kernels]


def whole_choice(registry: Registry, executor: Choice, query: Query) -> Choice:
    """The choice for a site of a kind for which the executor has no kernels: itself."""
    found = _registered(registry, executor)
    return Choice(query.kind, query.site, "", query, (_piece(found, "", found.spec.summary),))


def knows(registry: Registry, executor: Choice, feature: str) -> bool:
    """Whether the chosen executor knows a feature."""
    return feature in _registered(registry, executor).spec.knows


def _registered(registry: Registry, executor: Choice) -> Registered[ExecutorSpec]:
    return next(found for found in registry.of(ExecutorSpec) if found.spec.id == executor.id)


def features_used(config: Config, *, pools_only: bool, quantization: bool) -> frozenset[str]:
    """The features that an executor must know. ``pools_only``: the model generates no text."""
    select = config.select
    kinds = [getattr(select, kind) for kind in ("attention", "linear", "moe", "op")]
    used = {
        "adapters": bool(config.adapters),
        "deterministic": config.engine.deterministic,
        "kernels": any(rules.use or rules.prefer for rules in kinds),
        "dummy_weights": config.model.load_format == "dummy",
        "pooling": pools_only or config.model.pooling in ("last", "mean"),
        "quantization": quantization,
        "shadows": any(rules.shadow for rules in kinds),
        "speculation": bool(config.speculation.use),
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def _verdict(spec: ExecutorSpec, query: ExecutorQuery, uses: frozenset[str]) -> Verdict:
    verdict: Verdict = evaluate(spec.supports, query)
    for feature in sorted(uses - spec.knows):
        verdict &= no("not_understood", wanted=feature, found=f"an executor that does not know {feature}")
    return verdict


def _piece(found: Registered[ExecutorSpec], implementation: str, why: str) -> Piece:
    plugin = found.plugin
    return Piece(1, END, found.spec.id, plugin.distribution, plugin.version, implementation, "", "", why)
