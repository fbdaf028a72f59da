"""The whole start in order, up to the plan. Nothing here loads a tensor or touches a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import BaseModel

from llmk.api import (
    Checkpoint,
    Choice,
    ConfigError,
    Default,
    Host,
    LlmkError,
    ModelFacts,
    ModelNotFound,
    ModelSpec,
    Plan,
    PlatformFacts,
    PlatformSpec,
    PluginError,
    Problem,
    Reason,
)
from llmk.kernel.checkpoint import read_checkpoint
from llmk.kernel.discovery import describe
from llmk.kernel.loader import load_object
from llmk.kernel.platforms import choose_platform
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.resolver import resolve
from llmk.kernel.selection import MODELS_WHEEL, choose_model

if TYPE_CHECKING:
    from llmk.config import Config, Settings

DEMO = ("", "demo")
"""Values of ``model.path`` that mean the embedded demo model."""


@dataclass(frozen=True, slots=True)
class Boot:
    """Everything that is known before the engine starts. ``facts.max_model_len`` is what the configuration allows."""

    settings: Settings
    registry: Registry
    checkpoint: Checkpoint
    facts: ModelFacts
    platform_facts: PlatformFacts
    plan: Plan


def boot(settings: Settings, *, on: str | None = None, verify: bool = True, host: Host | None = None) -> Boot:
    """Discovers, probes, reads, describes, finishes the configuration, and resolves.

    ``on`` plans for another machine. ``verify`` imports every winner (hence torch), so that one that can't be is replaced with a
    warning; without it, and for another machine, nothing heavy is imported. Raises any of :mod:`llmk.api.errors`.
    """
    registry = Registry.discover(settings.config.plugins)
    registry.enforce(_pinned_plugins(settings.config), strict=settings.config.engine.strict)
    platform, platform_facts = choose_platform(registry, settings.config, host, on=on)
    checkpoint = read_checkpoint(find_checkpoint(registry, settings.config.model.path))
    model = choose_model(registry, settings.config, checkpoint)
    facts = describe_model(model, checkpoint)
    settings, facts = finish_settings(settings, registry, platform, platform_facts, facts)
    plan = _resolve(registry, settings.config, checkpoint, facts, platform_facts, verify and on is None)
    registry.call("llmk_plan_resolved", plan=plan)
    return Boot(settings, registry, checkpoint, facts, platform_facts, plan)


def verified(boot: Boot) -> Boot:
    """``boot``, made without ``verify``, with a plan whose winners can all be imported in this process."""
    if not dict(_broken_winners(boot.plan)):
        return boot
    plan = _resolve(boot.registry, boot.settings.config, boot.checkpoint, boot.facts, boot.platform_facts, True)
    return replace(boot, plan=plan)


def find_checkpoint(registry: Registry, path: str) -> str:
    """``path``, or the folder of the demo model where it names none. Raises ModelNotFound."""
    from pathlib import Path

    if path not in DEMO or (path and Path(path).is_dir()):
        return path
    for _, folder in registry.call("llmk_demo_checkpoint"):
        return str(folder)
    raise ModelNotFound(
        "no model is named, and no installed wheel brings a demo model",
        hint=f"name a checkpoint folder, or pip install {MODELS_WHEEL}",
    )


def describe_model(model: Registered[ModelSpec], checkpoint: Checkpoint) -> ModelFacts:
    """Asks the model's plugin for its facts. Raises what it raises on purpose, and PluginError for all else."""
    function = load_object(model.spec.describe, plugin=model.plugin)
    try:
        facts = function(checkpoint)
    except (LlmkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = Reason("describe_raised", found=describe(error))
        message = f"{model.spec.id} of {model.plugin.wheel} can't describe {checkpoint.path}"
        raise PluginError(message, reasons=(reason,), hint="run with --debug for its traceback") from error
    if not isinstance(facts, ModelFacts):
        raise PluginError(
            f"{model.spec.describe} of {model.plugin.wheel} returns a {type(facts).__name__}, not ModelFacts"
        )
    return replace(facts, model=model.spec.id)


def finish_settings(
    settings: Settings,
    registry: Registry,
    platform: Registered[PlatformSpec],
    platform_facts: PlatformFacts,
    facts: ModelFacts,
) -> tuple[Settings, ModelFacts]:
    """Both phases of configuration: plugins' defaults, then their checks. Raises ConfigError."""
    defaults = registry.call_list("llmk_config_defaults", Default, platform=platform_facts, model=facts)
    own_last = sorted(defaults, key=lambda pair: pair[0] is platform.plugin)
    for plugin, default in own_last:
        try:
            settings = settings.with_defaults([(plugin.name, default)])
        except ConfigError as error:
            plugin.stop("broken", Reason("bad_default", found=describe(error)), error)
    settings = settings.with_plugin_schemas(dict(_schemas(registry)))
    allowed = facts.max_model_len
    settings = settings.with_checkpoint({"model.max_model_len": allowed}, "the longest context it allows")
    wanted = settings.config.model.max_model_len or allowed
    if wanted > allowed:
        raise ConfigError(
            f"model.max_model_len = {wanted} (set by {settings.origin('model.max_model_len')}) is longer than "
            f"the {allowed} tokens that the checkpoint allows",
            hint=f"set it to at most {allowed}",
        )
    facts = replace(facts, max_model_len=wanted)
    problems = registry.call_list("llmk_check_config", Problem, config=settings.config, platform=platform_facts)
    if problems:
        lines = [f"{p.path} (set by {settings.origin(p.path)}): {p.message}" for _, p in problems]
        hint = "; ".join(p.fix for _, p in problems if p.fix)
        raise ConfigError("\n".join(lines), hint=hint)
    return settings, facts


def _schemas(registry: Registry) -> Iterator[tuple[str, type[BaseModel] | None]]:
    for plugin in registry.plugins:
        schema = plugin.call("llmk_config_schema")
        yield plugin.name, schema


def _pinned_plugins(config: Config) -> list[str]:
    """The plugins whose ids the configuration pins."""
    pins: list[str] = []
    for kind in type(config.select).model_fields:
        use = getattr(config.select, kind).use
        pins += [use] if isinstance(use, str) else use.values()
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
    skipped: list[str] = []
    while True:
        plan = resolve(registry, config, checkpoint, facts, platform_facts, excluded=excluded)
        broken = dict(_broken_winners(plan)) if verify else {}
        if not broken:
            return replace(plan, warnings=(*plan.warnings, *skipped))
        for id, error in broken.items():
            if config.engine.strict:
                raise error
            excluded[id] = error.reasons[0]
            skipped.append(f"{id} is skipped: {error.reasons[0]}")


def _broken_winners(plan: Plan) -> Iterator[tuple[str, PluginError]]:
    load_object(plan.platform_implementation)
    load_object(plan.model_implementation)
    for choice in _flat(plan.choices):
        for piece in choice.pieces:
            for location in (piece.implementation, piece.prepare):
                try:
                    if location:
                        load_object(location, plugin=f"{piece.distribution} {piece.version}")
                except PluginError as error:
                    yield piece.id, error


def _flat(choices: tuple[Choice, ...]) -> Iterator[Choice]:
    for choice in choices:
        yield choice
        yield from _flat(choice.parts)
