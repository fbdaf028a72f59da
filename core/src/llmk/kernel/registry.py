"""The registry: every spec of usable plugins, with the plugin that registered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llmk.api import (
    CheckpointFormatSpec,
    CommandSpec,
    ExecutorSpec,
    GrammarSpec,
    IOProcessorSpec,
    KernelSpec,
    LauncherSpec,
    LogitsProcessorSpec,
    ModelSourceSpec,
    ModelSpec,
    OpContract,
    PageSpec,
    ParserSpec,
    PlatformSpec,
    PolicySpec,
    QuantizationSpec,
    RouterSpec,
    RouteSpec,
    SpeculatorSpec,
    StatLoggerSpec,
    TunedConfigs,
)
from llmk.api.errors import PluginError
from llmk.api.specs import GIVEN_PARTS
from llmk.api.verdict import Reason
from llmk.config.package_folder import package_folder
from llmk.kernel.discovery import REPLACED, Plugin, find_plugins, is_named
from llmk.kernel.first_party import how_to_install
from llmk.kernel.watchdog import watching

if TYPE_CHECKING:
    from llmk.config import PluginsSection

S = TypeVar("S")

HOOKS: dict[str, dict[str, type]] = {
    "llmk_platforms": {"platform": PlatformSpec},
    "llmk_executors": {"executor": ExecutorSpec},
    "llmk_launchers": {"launcher": LauncherSpec},
    "llmk_attention_backends": {"attention": KernelSpec},
    "llmk_linear_kernels": {"linear": KernelSpec},
    "llmk_moe_kernels": {"moe": KernelSpec},
    "llmk_ops": {"op": KernelSpec, "op_contract": OpContract},
    "llmk_model_sources": {"model_source": ModelSourceSpec},
    "llmk_checkpoint_formats": {"checkpoint_format": CheckpointFormatSpec},
    "llmk_quantization_methods": {"quantization": QuantizationSpec},
    "llmk_models": {"model": ModelSpec},
    "llmk_reasoning_parsers": {"reasoning_parser": ParserSpec},
    "llmk_tool_parsers": {"tool_parser": ParserSpec},
    "llmk_routes": {"route": RouteSpec},
    "llmk_pages": {"page": PageSpec},
    "llmk_io_processors": {"io_processor": IOProcessorSpec},
    "llmk_scheduling_policies": {"policy": PolicySpec},
    "llmk_routers": {"router": RouterSpec},
    "llmk_logits_processors": {"logits_processor": LogitsProcessorSpec},
    "llmk_speculators": {"speculator": SpeculatorSpec},
    "llmk_grammars": {"grammar": GrammarSpec},
    "llmk_stat_loggers": {"stat_logger": StatLoggerSpec},
    "llmk_commands": {"command": CommandSpec},
    "llmk_tuned_configs": {"tuned": TunedConfigs},
}
"""Hooks that return specs: the kinds and types of what they return."""


@dataclass(frozen=True, slots=True)
class Registered(Generic[S]):
    """A spec, its kind and the plugin that registered it."""

    spec: S
    plugin: Plugin
    kind: str = ""


class Registry:
    """All plugins and their specs. ``refused`` are specs that must not be used, with the reason."""

    def __init__(self, plugins: Sequence[Plugin], rules: PluginsSection) -> None:
        self.plugins = list(plugins)
        self.notices: list[str] = []
        self.refused: list[tuple[Registered[Any], Reason]] = []
        self._rules = rules
        self._specs = [registered for plugin in self.plugins for registered in _collect(plugin)]
        self._settle_overrides()
        self._settle_contracts()
        self._set_aside_empty()

    @classmethod
    def discover(cls, rules: PluginsSection) -> Registry:
        """Discovers plugins and collects their specs. Never raises because of a plugin; see :meth:`enforce`."""
        with watching(rules.import_seconds):
            return cls(find_plugins(rules), rules)

    def of(self, spec_type: type[S], kind: str = "") -> list[Registered[S]]:
        """Specs of one type, and of one kind if the type has several, of usable plugins."""
        return [r for r in self._specs if isinstance(r.spec, spec_type) and kind in ("", r.kind) and r.plugin.is_usable]

    def kernels(self, kind: str) -> list[Registered[KernelSpec]]:
        """Kernels of kind attention, linear, moe or op."""
        return self.of(KernelSpec, kind)

    @property
    def platforms(self) -> list[Registered[PlatformSpec]]:
        """Platforms."""
        return self.of(PlatformSpec)

    @property
    def contracts(self) -> dict[str, OpContract]:
        """The contract of each op."""
        return {registered.spec.op: registered.spec for registered in self.of(OpContract)}

    def site_kinds(self, op: str) -> frozenset[str]:
        """The kinds of sites, ``"attention"`` and ``"linear"``, whose kernels are parts of an op or of its parts."""
        contracts, found, open_ops, kinds = self.contracts, set[str](), [op], set[str]()
        while open_ops:
            contract = contracts.get(open_ops.pop())
            new = set(contract.parts if contract else ()) - found
            found |= new
            kinds |= {GIVEN_PARTS[part] for part in new if part in GIVEN_PARTS}
            open_ops += new
        return frozenset(kinds)

    def call(
        self, hook: str, item: type[S], of: Collection[Plugin] | None = None, **arguments: Any
    ) -> list[tuple[Plugin, S]]:
        """Calls a hook of every plugin, or of some, each guarded, and returns the results with their plugins; lists are
        flattened.

        A plugin that returns something other than ``item`` is quarantined.
        """
        found: list[tuple[Plugin, S]] = []
        for plugin in self.plugins if of is None else of:
            found += [(plugin, one) for one in _call(plugin, hook, item, **arguments)]
        return found

    @property
    def warnings(self) -> list[str]:
        """Notices, and one line per plugin that is left out, unless the configuration says so."""
        bad = [p for p in self.plugins if p.state in ("broken", "incompatible", "conflicting")]
        left = [f"plugin {p.name} ({p.wheel}) is {p.state}, left out: {'; '.join(map(str, p.reasons))}" for p in bad]
        empty = [f"{r.spec.id} ({r.plugin.wheel}) is not used: {w}" for r, w in self.refused if w.code == "no_folder"]
        return [*self.notices, *left, *empty]

    def enforce(self, names: Iterable[str] = (), *, strict: bool = False) -> None:
        """Raises PluginError, with the plugin's own traceback as a note, if a required plugin is not usable, or if any
        plugin replaced functions of llmk.

        ``plugins.only``, ``plugins.require`` and ``names`` are required; with ``strict``, all that are not blocked are.
        """
        required = (*self._rules.require, *self._rules.only)
        for name in (*required, *names):
            found = [plugin for plugin in self.plugins if is_named(plugin, (name,))]
            if found and not any(plugin.is_usable for plugin in found):
                raise _failure(found[0])
            if not found and name in required:
                known = ", ".join(f"{p.name} ({p.distribution})" for p in self.plugins)
                raise PluginError(
                    f"plugin {name!r} is required, but not installed",
                    hint=how_to_install(name) or f"installed: {known}",
                )
        for plugin in self.plugins:
            if any(reason.code == REPLACED for reason in plugin.reasons):
                message = f"plugin {plugin.name!r} of {plugin.wheel} replaced functions of llmk, which can't be undone"
                raise PluginError(message, reasons=plugin.reasons, hint=plugin.way_out)
            if strict and not plugin.is_usable and plugin.state != "blocked":
                raise _failure(plugin)

    def _settle_overrides(self) -> None:
        """Removes specs that are overridden with the user's permission, and specs that override others without it."""
        out: dict[int, Reason] = {}
        for one in [r for r in self._specs if r.spec.overrides]:
            name = one.spec.overrides
            target = next((r for r in self._specs if r.kind == one.kind and r.spec.id == name), None)
            if target is None:
                continue
            foreign = one.plugin.distribution != target.plugin.distribution
            if id(target) in out:
                hint = f'[plugins] disable = ["{one.plugin.name}"] leaves this one out'
                out[id(one)] = Reason("override_conflict", f"to replace {name}", str(out[id(target)]), hint)
            elif foreign and name not in self._rules.allow_overrides:
                hint = f'to consent: [plugins] allow_overrides = ["{name}"]'
                wanted = f"to replace {name} of {target.plugin.wheel}"
                out[id(one)] = Reason("override_not_allowed", wanted, "no consent", hint)
            else:
                out[id(target)] = Reason("overridden", found=f"by {one.spec.id} of {one.plugin.wheel}")
        self._refuse(out)

    def _settle_contracts(self) -> None:
        """Stops plugins that declare an op which another declares: kernels of two ops would be taken for each other."""
        taken: dict[str, Plugin] = {}
        for plugin in self.plugins:
            own = [r.spec.op for r in self.of(OpContract) if r.plugin is plugin]
            if clash := next((op for op in own if op in taken or own.count(op) > 1), ""):
                hint = f'rename the op, or [plugins] disable = ["{plugin.distribution}"] leaves this wheel out'
                found = f"declared by {taken.get(clash, plugin).wheel}"
                plugin.stop("conflicting", Reason("op_taken", f"op {clash} for {plugin.wheel}", found, hint))
            else:
                taken |= dict.fromkeys(own, plugin)

    def _set_aside_empty(self) -> None:
        """Removes specs of measurements and pages whose folder does not exist in the wheel."""
        held = [r for r in self._specs if isinstance(r.spec, (TunedConfigs, PageSpec))]
        empty = [r for r in held if package_folder(r.spec.package, r.spec.folder) is None]
        hint = "the wheel must ship it as package data"
        self._refuse(
            {id(r): Reason("no_folder", f"folder {r.spec.folder!r} in {r.spec.package}", "none", hint) for r in empty}
        )

    def _refuse(self, out: Mapping[int, Reason]) -> None:
        """Removes specs, with reasons by Python's ``id`` of what is registered."""
        self.refused += [(r, out[id(r)]) for r in self._specs if id(r) in out]
        self._specs = [r for r in self._specs if id(r) not in out]


def _collect(plugin: Plugin) -> Iterator[Registered[Any]]:
    """All specs of a plugin. One invalid spec makes the whole plugin broken, so that none is used in part."""
    found: list[Registered[Any]] = []
    for hook, kinds in HOOKS.items():
        specs: list[Any] = _call(plugin, hook, *kinds.values())
        found += [Registered(spec, plugin, kind) for spec in specs for kind in kinds if isinstance(spec, kinds[kind])]
    counts = Counter((r.kind, r.spec.id) for r in found)
    for r in found:
        problem = ""
        if not r.spec.id.startswith(f"{plugin.name}.") or r.spec.id == f"{plugin.name}.":
            problem = f"is not of the form '{plugin.name}.name', where {plugin.name!r} is the entry point's name"
        elif counts[r.kind, r.spec.id] > 1:
            problem = "is registered twice"
        elif getattr(r.spec, "kind", r.kind) != r.kind:
            problem = f"is of kind {r.spec.kind!r}, but a hook for kind {r.kind!r} returned it"
        if problem:
            plugin.stop("broken", Reason("bad_spec", found=f"{r.kind} id {r.spec.id!r} {problem}"))
            return
    if plugin.state == "loaded" and plugin.hooks:
        plugin.state = "active"
    elif plugin.state == "loaded":
        plugin.reasons.append(Reason("no_hooks", found="nothing in its module is marked with @hookimpl"))
    if plugin.is_usable:
        yield from found


def _call(plugin: Plugin, hook: str, *item_types: type[S], **arguments: Any) -> list[S]:
    answer = plugin.call(hook, **arguments)
    items = answer if isinstance(answer, list) else [] if answer is None else [answer]
    wrong = next((type(one).__name__ for one in items if not isinstance(one, item_types)), "")
    if wrong:
        right = " or ".join(each.__name__ for each in item_types)
        plugin.stop("broken", Reason("bad_spec", found=f"{hook} returned {wrong}, not {right} or a list"))
    return [] if wrong else items


def _failure(plugin: Plugin) -> PluginError:
    hint = f"fix it, or pip uninstall {plugin.distribution}"
    if plugin.state == "blocked":
        hint = "remove it from [plugins] disable, or add it to only"
    message = f"plugin {plugin.name!r} of {plugin.wheel} is required, but it is {plugin.state}"
    error = PluginError(message, reasons=plugin.reasons, hint=hint)
    if plugin.traceback:
        error.add_note(f"the plugin's own traceback:\n{plugin.traceback}")
    return error
