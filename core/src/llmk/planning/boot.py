"""Startup, in order, up to the plan. Nothing here loads a tensor or initialises a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from llmk.api import (
    Checkpoint,
    CheckpointFormatSpec,
    Choice,
    Default,
    ExecutorQuery,
    Host,
    ModelFacts,
    ModelSpec,
    Plan,
    PlatformFacts,
    PlatformSpec,
    Problem,
    QuantizationChoice,
    QuantizationSpec,
)
from llmk.api.errors import ConfigError, PluginError, describe
from llmk.api.facts import in_state_dtype
from llmk.api.sharding import parallel_problems
from llmk.api.verdict import Reason
from llmk.kernel.discovery import Plugin
from llmk.kernel.loader import check_present, load_object
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watching
from llmk.planning.adapters import Adapter, read_adapters
from llmk.planning.advice import ABLE, with_advice
from llmk.planning.choices.checkpoints import choose_checkpoint
from llmk.planning.choices.executors import choose_executor, executor_of, features_used, knows
from llmk.planning.choices.launchers import check_starts, choose_launcher, launcher_of
from llmk.planning.choices.models import (
    TREE_MODEL,
    choose_model,
    describe_model,
    model_program,
    model_tree,
)
from llmk.planning.choices.platforms import choose_platform
from llmk.planning.choices.speculation import needs_heads
from llmk.planning.formats import choose_formats, with_formats
from llmk.planning.memory import cache_problems
from llmk.planning.op_references import reference_ops
from llmk.planning.pooling import Pooling, decoder_of, read_pooling
from llmk.planning.replicas import replica_problems
from llmk.planning.resolver import choose_dtype, resolve

if TYPE_CHECKING:
    from llmk.config import Config, Settings
    from llmk.tree import Program

Find = Callable[..., Any]
"""Loads or locates ``"module:attribute"`` of ``plugin``; raises PluginError if that fails."""


@dataclass(frozen=True, slots=True)
class Boot:
    """Everything that is known before the engine starts. ``facts.max_model_len`` is already limited by the
    configuration."""

    settings: Settings
    registry: Registry
    checkpoint: Checkpoint
    facts: ModelFacts
    platform_facts: PlatformFacts
    plan: Plan
    adapters: tuple[Adapter, ...] = ()
    pooling: Pooling | None = None
    first_device: int = 0
    """The number of the first rank's device, where several replicas divide the machine."""
    cpus: frozenset[int] = frozenset()
    """The CPUs that a replica may use; empty: all that its process may."""

    def load(self, kind: str) -> Any:
        """What makes the plan's ``"platform"``, or its ``"model"`` from an ``llmk.nn.Build`` and the checkpoint. Raises
        PluginError."""
        if kind != "model" or self.plan.model_implementation != TREE_MODEL:
            return _load_named(self.registry, self.plan, kind, load_object)
        return partial(load_object(TREE_MODEL), program=self._program(self._family))

    @property
    def executor_query(self) -> ExecutorQuery:
        """What an executor was, or would be, asked about the model."""
        return _executor_query(self.settings.config, self._family, self.checkpoint, self.facts, self.platform_facts)

    @property
    def _family(self) -> Registered[ModelSpec]:
        return next(model for model in self.registry.of(ModelSpec) if model.spec.id == self.plan.model)

    def _program(self, model: Registered[ModelSpec]) -> Program:
        config = self.settings.config
        given = model, self.checkpoint, self.adapters, self.pooling, config.parallel.tensor
        return model_program(*given, heads=needs_heads(self.registry, config))


def boot(
    settings: Settings,
    *,
    on: str | None = None,
    verify: bool = True,
    host: Host | None = None,
    outline: bool = False,
    num_devices: int = 0,
) -> Boot:
    """Discovers plugins, probes platforms, reads the checkpoint, describes the model, completes the configuration, and
    resolves the plan.

    ``on`` plans for another machine. With ``verify``, every chosen implementation is imported (hence torch), and one
    that can't be imported is replaced, with a warning. Without it, or with ``on``, nothing heavy is imported, and only
    implementations whose module can't be found are replaced. ``outline``: no weights will be read, so that only the
    metadata of a model is downloaded. ``num_devices``: plans for so many of the machine's devices, wherever they are.
    Raises any of :mod:`llmk.api.errors`.
    """
    with watching(settings.config.plugins.import_seconds):
        return _boot(settings, on, verify, host, outline, num_devices)


def _boot(settings: Settings, on: str | None, verify: bool, host: Host | None, outline: bool, num_devices: int) -> Boot:
    config = settings.config
    registry = Registry.discover(config.plugins)
    registry.enforce(_pinned_plugins(config), strict=config.engine.strict)
    platform, platform_facts = choose_platform(registry, config, host, on=on)
    if num_devices:
        platform_facts = replace(platform_facts, num_devices=num_devices)
    checkpoint = choose_checkpoint(registry, _for_reading(settings, registry, platform_facts).config, outline=outline)
    pooling, architecture = read_pooling(checkpoint, config.model.pooling), checkpoint.architecture
    checkpoint = decoder_of(checkpoint)
    pools_only = pooling is not None and not pooling.generates
    model = choose_model(registry, config, checkpoint, with_tree=pools_only)
    adapters: tuple[Adapter, ...] = ()
    if config.adapters:
        served_name = config.model.served_name or checkpoint.name
        adapters = read_adapters(config, model_tree(model, checkpoint), served_name)
    describe = partial(describe_model, model, checkpoint, adapters, pooling, heads=needs_heads(registry, config))
    facts = describe(config.parallel.tensor)
    settings = _with_length(settings, registry, facts)
    settings = apply_defaults(settings, registry, platform, platform_facts, replace(facts, architecture=architecture))
    if (ranks := settings.config.parallel.tensor) != config.parallel.tensor:
        facts = describe(ranks)
    facts = replace(facts, architecture=architecture)
    launcher = choose_launcher(registry, settings.config, platform_facts)
    _check(settings, registry, platform_facts, facts, spread=launcher is not None)
    facts = replace(facts, max_model_len=settings.config.model.max_model_len or facts.max_model_len)
    facts = _with_state_dtype(facts, settings.config, platform_facts)
    find: Find = load_object if verify and on is None else check_present
    formats = choose_formats(registry, settings.config, checkpoint)
    facts = with_formats(facts, formats) if formats else facts
    chosen = formats.choices if formats else ()
    ask = partial(_executor_query, settings.config, model, checkpoint, facts, platform_facts)
    uses = features_used(settings.config, pools_only=pools_only, quantization=bool(chosen))
    executor = choose_executor(registry, settings.config, platform_facts, ask, uses)
    if executor is not None and not knows(registry, executor, "pooling"):
        pooling = None
    check_starts(launcher, executor)
    known = (checkpoint, facts, platform_facts, chosen)
    own = (executor, launcher)
    plan = _resolve(registry, settings.config, *known, find, platform.spec.id, own)
    registry.call("llmk_plan_resolved", object, plan=plan)
    return Boot(settings, registry, checkpoint, facts, platform_facts, plan, adapters, pooling)


def verified(boot: Boot) -> Boot:
    """``boot``, made without ``verify``, with a plan whose implementations can all be imported in this process."""
    config = boot.settings.config
    with watching(config.plugins.import_seconds):
        if not dict(_broken_winners(boot.registry, boot.plan, load_object)):
            return boot
        known = (boot.checkpoint, boot.facts, boot.platform_facts, boot.plan.quantization)
        plan = _resolve(boot.registry, config, *known, load_object, boot.plan.platform_id, _own_choices(boot.plan))
    return replace(boot, plan=plan)


def advised(boot: Boot) -> Boot:
    """``boot`` with hints in its plan on how to choose each candidate that supports its site but was not chosen."""
    config = boot.settings.config
    known = (boot.checkpoint, boot.facts, boot.platform_facts, boot.plan.quantization)
    how = (*known, check_present, boot.plan.platform_id, _own_choices(boot.plan))
    plan = with_advice(boot.plan, config, lambda other: _resolve(boot.registry, other, *how), ABLE)
    return replace(boot, plan=plan)


def apply_defaults(
    settings: Settings,
    registry: Registry,
    platform: Registered[PlatformSpec],
    platform_facts: PlatformFacts,
    facts: ModelFacts | None,
) -> Settings:
    """Applies the plugins' configuration defaults, those of the platform's plugin last so that they take precedence,
    and then validates the plugins' sections.

    A plugin with an invalid default is quarantined. Raises ConfigError for an invalid section.
    """
    given: dict[str, Any] = {"platform": platform_facts, "model": facts, "config": settings.config}
    defaults = registry.call("llmk_config_defaults", Default, **given)
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


def _for_reading(settings: Settings, registry: Registry, platform_facts: PlatformFacts) -> Settings:
    """The settings by which a checkpoint is read: with what plugins that have formats advise for their sections on this
    platform. What is invalid of it is reported by :func:`apply_defaults`."""
    formats = registry.of(CheckpointFormatSpec)
    owners = [plugin for plugin in registry.plugins if any(each.plugin is plugin for each in formats)]
    given: dict[str, Any] = {"platform": platform_facts, "model": None, "config": settings.config}
    for plugin, default in registry.call("llmk_config_defaults", Default, owners, **given):
        if default.path.startswith(f"plugin.{plugin.name}."):
            with suppress(ConfigError):
                settings = settings.with_defaults([(plugin.name, default)])
    return settings


def _with_length(settings: Settings, registry: Registry, facts: ModelFacts) -> Settings:
    """Sets the context length unless the user did: the checkpoint's longest, or the model family's default."""
    if not facts.default_model_len:
        return settings.with_checkpoint({"model.max_model_len": facts.max_model_len}, "the longest context it allows")
    settings = settings.with_checkpoint({"model.max_model_len": facts.default_model_len}, facts.default_why)
    length = settings.config.model.max_model_len
    registry.notices.append(f"model.max_model_len: {length} of {facts.max_model_len} tokens; {facts.default_why}")
    return settings


def _state_dtype(config: Config, facts: ModelFacts, dtype: str) -> str:
    """The dtype of recurrent states in which small changes accumulate, in an engine of ``dtype``. If the user leaves it
    open: bfloat16 where the engine's is and the checkpoint states no other, else float32, since float16 has too small a
    range for sums, and rounding where steps end is not deterministic."""
    if config.cache.state_dtype != "auto":
        return config.cache.state_dtype
    narrow = dtype == "bfloat16" and facts.state_dtype in ("", "bfloat16") and not config.engine.deterministic
    return "bfloat16" if narrow else "float32"


def _with_state_dtype(facts: ModelFacts, config: Config, platform_facts: PlatformFacts) -> ModelFacts:
    """The facts with recurrent states as they are kept. Raises ConfigError."""
    kept = _state_dtype(config, facts, choose_dtype(config, facts, platform_facts)[0])
    if facts.recurrent and kept != "float32" and config.engine.deterministic:
        raise ConfigError(
            f"engine.deterministic with recurrent states in {kept} (cache.state_dtype): they are rounded where a step "
            "ends, so that results would depend on other requests",
            hint="leave cache.state_dtype at auto",
        )
    return replace(facts, state_dtype=kept, recurrent=tuple(in_state_dtype(site, kept) for site in facts.recurrent))


def _check(
    settings: Settings, registry: Registry, platform_facts: PlatformFacts, facts: ModelFacts, *, spread: bool
) -> None:
    """Checks the final configuration; ``spread``, whether a launcher has other machines. Raises ConfigError with all
    problems at once."""
    answers = registry.call("llmk_check_config", Problem, config=settings.config, platform=platform_facts)
    problems = [problem for _, problem in answers]
    if settings.config.model.max_model_len > facts.max_model_len:
        message = f"the checkpoint allows {facts.max_model_len} tokens, not {settings.config.model.max_model_len}"
        problems.append(Problem("model.max_model_len", message, f"set it to {facts.max_model_len} or less"))
    parallel = settings.config.parallel
    problems += cache_problems(settings.config.cache, platform_facts)
    devices = replace(platform_facts, num_devices=0) if spread else platform_facts
    problems += parallel_problems(facts, devices, parallel.tensor, parallel.pipeline)
    problems += replica_problems(settings.config, devices)
    if problems:
        lines = [f"{p.path} (set by {settings.origin(p.path)}): {p.message}" for p in problems]
        raise ConfigError("\n".join(lines), hint="; ".join(p.fix for p in problems if p.fix))


def _pinned_plugins(config: Config) -> list[str]:
    """The plugins whose ids the configuration pins."""
    uses = [config.speculation.use, *(getattr(config.select, kind).use for kind in type(config.select).model_fields)]
    pins = [pin for use in uses for pin in ([use] if isinstance(use, str) else use.values())]
    return [pin.partition(".")[0] for pin in pins if "." in pin]


def _executor_query(
    config: Config,
    model: Registered[ModelSpec],
    checkpoint: Checkpoint,
    facts: ModelFacts,
    platform_facts: PlatformFacts,
) -> ExecutorQuery:
    dtype, _ = choose_dtype(config, facts, platform_facts)
    return ExecutorQuery(
        platform=platform_facts,
        model=facts,
        tree=model_tree(model, checkpoint),
        dtype=dtype,
        cache_dtype=dtype if config.cache.dtype == "auto" else config.cache.dtype,
        tensor=config.parallel.tensor,
        pipeline=config.parallel.pipeline,
    )


def _resolve(
    registry: Registry,
    config: Config,
    checkpoint: Checkpoint,
    facts: ModelFacts,
    platform_facts: PlatformFacts,
    quantization: tuple[QuantizationChoice, ...],
    find: Find,
    platform_id: str,
    own: tuple[Choice | None, Choice | None],
) -> Plan:
    """Resolves the plan, and again without the implementations for which ``find`` raises PluginError, until all can be
    found. ``own`` are the choices of an executor and a launcher."""
    excluded: dict[str, Reason] = {}
    given = (checkpoint, facts, platform_facts, quantization)
    executor, launcher = own

    def resolved(config: Config) -> Plan:
        return resolve(
            registry, config, *given, platform_id=platform_id, excluded=excluded, executor=executor, launcher=launcher
        )

    while True:
        plan = resolved(config)
        broken = dict(_broken_winners(registry, plan, find))
        if not broken:
            skipped = [f"{id} would have been chosen, but is skipped: {reason}" for id, reason in excluded.items()]
            return with_advice(replace(plan, warnings=(*plan.warnings, *skipped)), config, resolved)
        for id, error in broken.items():
            if config.engine.strict:
                raise error
            excluded[id] = error.reasons[0]


def _own_choices(plan: Plan) -> tuple[Choice | None, Choice | None]:
    return executor_of(plan), launcher_of(plan)


def _broken_winners(registry: Registry, plan: Plan, find: Find) -> Iterator[tuple[str, PluginError]]:
    for kind in ("platform", "model"):
        _load_named(registry, plan, kind, find)
    for method in plan.quantization:
        owner = next(r.plugin for r in registry.of(QuantizationSpec) if r.spec.id == method.id)
        find(method.implementation, plugin=owner, kind="quantization", id=method.id)
    references = reference_ops(registry)
    for choice in plan.all_choices():
        for piece in (piece for piece in choice.pieces if piece.implementation):  # executors compute the others
            wheel = {"plugin": f"{piece.distribution} {piece.version}", "id": piece.id}
            try:
                found = find(piece.implementation, kind="composite" if piece.parts else choice.kind, **wheel)
                if piece.prepare:
                    find(piece.prepare, kind="prepare", **wheel)
                if found is not None and choice.op in references:
                    references[choice.op].check(found, piece)
            except PluginError as error:
                yield piece.id, error


def _load_named(registry: Registry, plan: Plan, kind: str, find: Find) -> Any:
    """What the plan has one of: its platform or its model."""
    spec_type, id = {"platform": (PlatformSpec, plan.platform_id), "model": (ModelSpec, plan.model)}[kind]
    specs: list[Registered[Any]] = registry.of(spec_type)
    owner = next(r.plugin for r in specs if r.spec.id == id)
    implementation = getattr(plan, f"{kind}_implementation")
    if implementation == TREE_MODEL:  # the core's own, which takes one argument more than the contract says
        return find(implementation, id=id)
    return find(implementation, plugin=owner, kind=kind, id=id)
