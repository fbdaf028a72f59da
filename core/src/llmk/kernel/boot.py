"""The whole start in order, up to the plan. Nothing here loads a tensor or touches a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmk.api import Checkpoint, Default, Host, ModelFacts, Plan, PlatformFacts, PlatformSpec, Problem
from llmk.api.errors import ConfigError, PluginError, describe
from llmk.api.sharding import parallel_problems
from llmk.api.verdict import Reason
from llmk.kernel.checkpoint import read_checkpoint
from llmk.kernel.discovery import Plugin
from llmk.kernel.loader import load_object
from llmk.kernel.models import choose_model, describe_model, find_checkpoint
from llmk.kernel.platforms import choose_platform
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.resolver import resolve

if TYPE_CHECKING:
    from llmk.config import Config, Settings


@dataclass(frozen=True, slots=True)
class Boot:
    """All that is known before the engine starts. ``facts.max_model_len`` is what the configuration allows."""

    settings: Settings
    registry: Registry
    checkpoint: Checkpoint
    facts: ModelFacts
    platform_facts: PlatformFacts
    plan: Plan


def boot(settings: Settings, *, on: str | None = None, verify: bool = True, host: Host | None = None) -> Boot:
    """Discovers, probes, reads, describes, finishes the configuration, and resolves.

    ``on`` plans for another machine. ``verify`` imports every winner (hence torch) and replaces what can't be imported,
    with a warning; without it, and for another machine, nothing heavy is imported. Raises any of
    :mod:`llmk.api.errors`.
    """
    config = settings.config
    registry = Registry.discover(config.plugins)
    registry.enforce(_pinned_plugins(config), strict=config.engine.strict)
    platform, platform_facts = choose_platform(registry, config, host, on=on)
    checkpoint = read_checkpoint(find_checkpoint(registry, config.model.path))
    facts = describe_model(choose_model(registry, config, checkpoint), checkpoint)
    settings = settings.with_checkpoint({"model.max_model_len": facts.max_model_len}, "the longest context it allows")
    settings = apply_defaults(settings, registry, platform, platform_facts, facts)
    _check(settings, registry, platform_facts, facts)
    facts = replace(facts, max_model_len=settings.config.model.max_model_len or facts.max_model_len)
    plan = _resolve(registry, settings.config, checkpoint, facts, platform_facts, verify and on is None)
    registry.call("llmk_plan_resolved", object, plan=plan)
    return Boot(settings, registry, checkpoint, facts, platform_facts, plan)


def verified(boot: Boot) -> Boot:
    """``boot``, made without ``verify``, with a plan whose winners can all be imported in this process."""
    if not dict(_broken_winners(boot.plan)):
        return boot
    plan = _resolve(boot.registry, boot.settings.config, boot.checkpoint, boot.facts, boot.platform_facts, True)
    return replace(boot, plan=plan)


def apply_defaults(
    settings: Settings,
    registry: Registry,
    platform: Registered[PlatformSpec],
    platform_facts: PlatformFacts,
    facts: ModelFacts | None,
) -> Settings:
    """The early phase: plugins' defaults, the platform's own last so that they win, then plugins' own sections.

    A plugin whose default can't be used is quarantined. Raises ConfigError for a bad section.
    """
    defaults = registry.call("llmk_config_defaults", Default, platform=platform_facts, model=facts)
    advised: dict[str, tuple[Plugin, Default]] = {}
    for plugin, default in sorted(defaults, key=lambda pair: pair[0] is platform.plugin):
        other, former = advised.get(default.path, (plugin, default))
        if former.value != default.value:
            losing, winning = f"{other.name} advises {former.value!r}", f"{plugin.name} {default.value!r}"
            registry.notices.append(f"{default.path}: {losing}, but {winning}, which wins")
        advised[default.path] = (plugin, default)
        try:
            settings = settings.with_defaults([(plugin.name, default)])
        except ConfigError as error:
            plugin.stop("broken", Reason("bad_default", default.path, describe(error)), error)
    schemas = {plugin.name: schema for plugin, schema in registry.call("llmk_config_schema", type)}
    return settings.with_plugin_schemas({plugin.name: schemas.get(plugin.name) for plugin in registry.plugins})


def _check(settings: Settings, registry: Registry, platform_facts: PlatformFacts, facts: ModelFacts) -> None:
    """The late phase: refuses a configuration that can't work here, with every problem at once."""
    answers = registry.call("llmk_check_config", Problem, config=settings.config, platform=platform_facts)
    problems = [problem for _, problem in answers]
    if settings.config.model.max_model_len > facts.max_model_len:
        message = f"the checkpoint allows {facts.max_model_len} tokens, not {settings.config.model.max_model_len}"
        problems.append(Problem("model.max_model_len", message, f"set it to {facts.max_model_len} or less"))
    parallel = settings.config.parallel
    problems += parallel_problems(facts, platform_facts, parallel.tensor, parallel.pipeline)
    if problems:
        lines = [f"{p.path} (set by {settings.origin(p.path)}): {p.message}" for p in problems]
        raise ConfigError("\n".join(lines), hint="; ".join(p.fix for p in problems if p.fix))


def _pinned_plugins(config: Config) -> list[str]:
    """The plugins whose ids the configuration pins."""
    uses = [getattr(config.select, kind).use for kind in type(config.select).model_fields]
    pins = [pin for use in uses for pin in ([use] if isinstance(use, str) else use.values())]
    return [pin.partition(".")[0] for pin in pins if "." in pin]


def _resolve(
    registry: Registry,
    config: Config,
    checkpoint: Checkpoint,
    facts: ModelFacts,
    platform_facts: PlatformFacts,
    verify: bool,
) -> Plan:
    """Resolves; with ``verify`` again without each winner that can't be imported, until all can be."""
    excluded: dict[str, Reason] = {}
    while True:
        plan = resolve(registry, config, checkpoint, facts, platform_facts, excluded=excluded)
        broken = dict(_broken_winners(plan)) if verify else {}
        if not broken:
            skipped = [f"{id} would have been chosen, but is skipped: {reason}" for id, reason in excluded.items()]
            return replace(plan, warnings=(*plan.warnings, *skipped))
        for id, error in broken.items():
            if config.engine.strict:
                raise error
            excluded[id] = error.reasons[0]


def _broken_winners(plan: Plan) -> Iterator[tuple[str, PluginError]]:
    for location in (plan.platform_implementation, plan.model_implementation, plan.quantization_implementation):
        if location:
            load_object(location)
    for choice in plan.all_choices():
        for piece in choice.pieces:
            try:
                for location in filter(None, (piece.implementation, piece.prepare)):
                    load_object(location, plugin=f"{piece.distribution} {piece.version}")
            except PluginError as error:
                yield piece.id, error
