"""The registry: every spec that the active plugins registered, validated, each with the plugin that it came from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import importlib_metadata as metadata
from packaging.requirements import Requirement

from llmk.api import (
    IOProcessorSpec,
    KernelSpec,
    ModelSpec,
    ParserSpec,
    PlatformSpec,
    PluginError,
    QuantizationSpec,
    Reason,
    TunedConfigs,
)
from llmk.kernel.discovery import Plugin, PluginRules, describe, find_plugins, named

S = TypeVar("S")
T = TypeVar("T")

HOOKS: Mapping[str, tuple[str, type]] = {
    "llmk_platforms": ("platform", PlatformSpec),
    "llmk_attention_backends": ("attention", KernelSpec),
    "llmk_linear_kernels": ("linear", KernelSpec),
    "llmk_moe_kernels": ("moe", KernelSpec),
    "llmk_ops": ("op", KernelSpec),
    "llmk_quantization_methods": ("quantization", QuantizationSpec),
    "llmk_models": ("model", ModelSpec),
    "llmk_reasoning_parsers": ("reasoning_parser", ParserSpec),
    "llmk_tool_parsers": ("tool_parser", ParserSpec),
    "llmk_io_processors": ("io_processor", IOProcessorSpec),
    "llmk_tuned_configs": ("tuned", TunedConfigs),
}
"""Hooks that return specs: the kind and type of what they return."""

_LOCATION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Rules(PluginRules, Protocol):
    """What the registry reads of the configuration."""

    allow_overrides: tuple[str, ...]
    require: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registered(Generic[S]):
    """A spec and the plugin that registered it."""

    spec: S
    plugin: Plugin


@dataclass(frozen=True, slots=True)
class Refused:
    """A spec that may not take part, and why."""

    kind: str
    registered: Registered[Any]
    reason: Reason


class Registry:
    """All plugins, and the specs of the active ones. ``warnings`` are what a user must be told about them."""

    def __init__(self, plugins: Sequence[Plugin], rules: Rules) -> None:
        self.plugins = list(plugins)
        self.refused: list[Refused] = []
        self._rules = rules
        self._specs: dict[str, list[Registered[Any]]] = {kind: [] for kind, _ in HOOKS.values()}
        for plugin in self.plugins:
            self._collect(plugin)
        self._settle_overrides()

    @classmethod
    def discover(cls, rules: Rules, entry_points: Sequence[metadata.EntryPoint] | None = None) -> Registry:
        """Finds plugins and asks each for its specs. Never raises because of a plugin; see :meth:`enforce`."""
        return cls(find_plugins(rules, entry_points), rules)

    def specs(self, kind: str, spec_type: type[T]) -> list[Registered[T]]:
        """Specs of one kind from plugins that still work, in order of registration."""
        return cast("list[Registered[T]]", [r for r in self._specs[kind] if r.plugin.is_usable])

    def kernels(self, kind: str) -> list[Registered[KernelSpec]]:
        """Kernels of kind attention, linear, moe or op."""
        return self.specs(kind, KernelSpec)

    @property
    def platforms(self) -> list[Registered[PlatformSpec]]:
        """Platforms."""
        return self.specs("platform", PlatformSpec)

    @property
    def models(self) -> list[Registered[ModelSpec]]:
        """Model families."""
        return self.specs("model", ModelSpec)

    @property
    def quantization(self) -> list[Registered[QuantizationSpec]]:
        """Quantization methods."""
        return self.specs("quantization", QuantizationSpec)

    @property
    def reasoning_parsers(self) -> list[Registered[ParserSpec]]:
        """Reasoning parsers."""
        return self.specs("reasoning_parser", ParserSpec)

    @property
    def tool_parsers(self) -> list[Registered[ParserSpec]]:
        """Tool parsers."""
        return self.specs("tool_parser", ParserSpec)

    @property
    def io_processors(self) -> list[Registered[IOProcessorSpec]]:
        """IO processors."""
        return self.specs("io_processor", IOProcessorSpec)

    @property
    def tuned(self) -> list[Registered[TunedConfigs]]:
        """Folders of tuned configs."""
        return self.specs("tuned", TunedConfigs)

    def call(self, hook: str, **arguments: Any) -> list[tuple[Plugin, Any]]:
        """Calls a hook of every plugin, each guarded; returns what those that have it answered."""
        answers = [(plugin, plugin.call(hook, **arguments)) for plugin in self.plugins]
        return [(plugin, answer) for plugin, answer in answers if answer is not None]

    def call_list(self, hook: str, item: type[T], **arguments: Any) -> list[tuple[Plugin, T]]:
        """Calls a hook that returns a list; a plugin whose items are of another type is quarantined."""
        found: list[tuple[Plugin, T]] = []
        for plugin, answer in self.call(hook, **arguments):
            items = _listed(plugin, hook, answer, item)
            found += [(plugin, one) for one in items]
        return found

    @property
    def warnings(self) -> list[str]:
        """One line per plugin that is quarantined and was not left out on purpose."""
        bad = [p for p in self.plugins if p.state in ("broken", "incompatible", "conflicting")]
        return [f"plugin {p.name} ({p.wheel}) is {p.state} and left out: {_text(p.reasons)}" for p in bad]

    def enforce(self, asked_for: Iterable[str] = (), *, strict: bool = False) -> None:
        """Raises PluginError where a plugin that was asked for doesn't work, with its own traceback as a note.

        ``asked_for`` are names besides ``plugins.only`` and ``plugins.require``, such as those of pinned ids. ``strict`` asks for all.
        """
        rules = self._rules
        for name in (*rules.require, *getattr(rules, "only", ())):
            if not any(named(plugin, (name,)) for plugin in self.plugins):
                known = ", ".join(f"{p.name} ({p.distribution})" for p in self.plugins)
                raise PluginError(
                    f"plugin {name!r} is asked for but not installed", hint=f"installed: {known or 'none'}"
                )
        wanted = (*rules.require, *rules.only, *asked_for)
        for plugin in self.plugins:
            asked = named(plugin, wanted) or (strict and plugin.state != "blocked")
            if asked and not plugin.is_usable and not self._has_working_twin(plugin, wanted):
                raise self._failure(plugin)

    def _has_working_twin(self, plugin: Plugin, wanted: Iterable[str]) -> bool:
        """Whether what was asked for by entry-point name is served by another wheel that has this name."""
        by_wheel = named(Plugin("", plugin.distribution, ""), wanted)
        return not by_wheel and any(p.name == plugin.name and p.is_usable for p in self.plugins)

    def _failure(self, plugin: Plugin) -> PluginError:
        message = f"plugin {plugin.name!r} of {plugin.wheel} is asked for, but it is {plugin.state}"
        hint = f"mend or uninstall it (pip uninstall {plugin.distribution})"
        if plugin.state == "blocked":
            hint = "take it out of plugins.disable, or add it to plugins.only"
        error = PluginError(message, reasons=plugin.reasons, hint=hint)
        if plugin.traceback:
            error.add_note(f"the plugin's own traceback:\n{plugin.traceback}")
        return error

    def _collect(self, plugin: Plugin) -> None:
        """Asks one plugin for all its specs; one bad spec spoils the plugin, so that none is ever half there."""
        collected: list[tuple[str, Any]] = []
        for hook, (kind, spec_type) in HOOKS.items():
            found: list[Any] = _listed(plugin, hook, plugin.call(hook), spec_type)
            collected += [(kind, spec) for spec in found]
        problem = _first_problem(plugin, collected)
        if problem is not None:
            plugin.stop("broken", problem)
        if not plugin.is_usable or not plugin.hooks:
            return
        plugin.state = "active"
        for kind, spec in collected:
            self._specs[kind].append(Registered(spec, plugin))

    def _settle_overrides(self) -> None:
        """Takes out what is overridden with the user's consent, and overriders that lack it."""
        for kind, registered in self._specs.items():
            claims: dict[str, Registered[Any]] = {}
            for one in [r for r in registered if r.spec.overrides]:
                target = next((r for r in registered if r.spec.id == one.spec.overrides), None)
                if target is None:
                    continue
                reason = self._override_problem(one, target, claims.get(target.spec.id))
                if reason is None:
                    claims[target.spec.id] = one
                    overridden = Reason("overridden", found=f"{one.spec.id} of {one.plugin.wheel}")
                    self.refused.append(Refused(kind, target, overridden))
                else:
                    self.refused.append(Refused(kind, one, reason))
            out = {id(r.registered) for r in self.refused}
            registered[:] = [r for r in registered if id(r) not in out]

    def _override_problem(
        self, one: Registered[Any], target: Registered[Any], earlier: Registered[Any] | None
    ) -> Reason | None:
        name = target.spec.id
        if earlier is not None:
            hint = f'disable one: [plugins] disable = ["{one.plugin.name}"] or ["{earlier.plugin.name}"]'
            return Reason("override_conflict", name, f"already overridden by {earlier.spec.id}", hint)
        if name not in self._rules.allow_overrides and one.plugin.distribution != target.plugin.distribution:
            hint = f'to consent: [plugins] allow_overrides = ["{name}"]'
            return Reason("override_not_allowed", f"to replace {name} of {target.plugin.wheel}", "no consent", hint)
        return None


def _text(reasons: Sequence[Reason]) -> str:
    return "; ".join(str(reason) for reason in reasons)


def _listed(plugin: Plugin, hook: str, answer: Any, item: type[T]) -> list[T]:
    """The answer of a hook as a list of ``item``; anything else quarantines the plugin. Generators run guarded."""
    if answer is None or not plugin.is_usable:
        return []
    try:
        items = list(answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        plugin.stop("broken", Reason("hook_raised", hook, describe(error)), error)
        return []
    wrong = next((one for one in items if not isinstance(one, item)), None)
    if wrong is not None:
        plugin.stop("broken", Reason("bad_spec", f"{hook} to return {item.__name__}", type(wrong).__name__))
        return []
    return items


def _first_problem(plugin: Plugin, collected: Sequence[tuple[str, Any]]) -> Reason | None:
    for kind, spec in collected:
        problem = _spec_problem(plugin, kind, spec)
        if problem:
            return Reason("bad_spec", found=f"{kind} spec {spec.id!r} {problem}")
    twice = [key for key, count in Counter((kind, spec.id) for kind, spec in collected).items() if count > 1]
    return Reason("bad_spec", found=f"{twice[0][0]} id {twice[0][1]!r} is registered twice") if twice else None


def _spec_problem(plugin: Plugin, kind: str, spec: Any) -> str:
    prefix, _, name = spec.id.partition(".")
    if prefix != plugin.name or not name:
        return f"is not of the form '{plugin.name}.name'"
    for attribute in ("implementation", "describe", "prepare"):
        location = getattr(spec, attribute, "")
        optional = attribute == "prepare" and not location
        if hasattr(spec, attribute) and not optional and not _LOCATION.fullmatch(location):
            return f"has {attribute} {location!r}, which is not of the form 'module:attribute'"
    return _kernel_problem(kind, spec) if isinstance(spec, KernelSpec) else ""


def _kernel_problem(kind: str, spec: KernelSpec) -> str:
    if spec.kind != kind:
        return f"has kind {spec.kind!r}, but its hook returns kind {kind!r}"
    if (kind == "op") != bool(spec.op):
        return "names no op" if kind == "op" else f"names op {spec.op!r}, but is no op"
    bands = sorted(spec.bands, key=lambda band: band.start)
    if not bands or any(band.start < 1 or band.start >= band.stop for band in bands):
        return "has an empty token band"
    if any(left.stop > right.start for left, right in zip(bands, bands[1:], strict=False)):
        return "has overlapping token bands"
    try:
        for package in spec.needs.packages:
            Requirement(package)
    except ValueError as error:
        return f"needs package {package!r}: {error}"
    return ""
