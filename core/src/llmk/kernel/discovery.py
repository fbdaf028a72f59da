"""Discovers plugins through entry points and imports each separately, so that a broken one does not affect others."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import importlib_metadata as metadata
import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from llmk.api import ENTRY_POINT_GROUP, Reason, hooks
from llmk.api.errors import describe
from llmk.kernel.patches import replaced_by_package
from llmk.kernel.watchdog import watched, watching

if TYPE_CHECKING:
    from llmk.config import PluginsSection

CORE = "llmk-core"
REPLACED = "replaced"
"""The reason code of plugins that replaced functions of llmk. This is fatal, since it can't be undone."""


@dataclass(slots=True)
class Plugin:
    """A plugin and its state: discovered, compatible, loaded or active; or, with ``reasons``, blocked, incompatible,
    broken or conflicting.
    """

    name: str
    distribution: str
    version: str
    state: str = "discovered"
    reasons: list[Reason] = field(default_factory=list)
    hooks: tuple[str, ...] = ()
    traceback: str = ""
    manager: pluggy.PluginManager | None = None

    @property
    def wheel(self) -> str:
        """Distribution and version, human-readable."""
        return f"{self.distribution} {self.version}"

    @property
    def way_out(self) -> str:
        """A hint for a plugin that is broken in a way that llmk can't handle by leaving it out."""
        return f'[plugins] disable = ["{self.name}"] leaves it out (--plugins.disable {self.name}), or fix the wheel'

    @property
    def is_usable(self) -> bool:
        """Whether its hooks may be called."""
        return self.state in ("loaded", "active")

    def stop(self, state: str, reason: Reason, error: BaseException | None = None) -> None:
        """Leaves the plugin out, with the new state and a reason."""
        self.state = state
        self.reasons.append(reason)
        if error is not None:
            self.traceback = "".join(traceback.format_exception(error))

    def call(self, hook: str, **arguments: Any) -> Any:
        """Calls a hook of this plugin; ``None`` if the plugin doesn't implement it. An exception quarantines the
        plugin."""
        if self.manager is None or hook not in self.hooks or not self.is_usable:
            return None
        try:
            with watched(f"hook {hook} of plugin {self.name!r} ({self.wheel})", self.way_out):
                results = getattr(self.manager.hook, hook)(**arguments)
                # The result of a hook may be a generator, whose code must run guarded too.
                listed = [list(r) if isinstance(r, Iterable) and not isinstance(r, str) else r for r in results]
            return listed[0] if listed else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.stop("broken", Reason("hook_raised", hook, describe(error)), error)
            return None


def is_named(plugin: Plugin, names: Iterable[str]) -> bool:
    """Whether ``names`` has the name of the plugin's entry point or distribution."""
    wanted = {canonicalize_name(name) for name in names}
    return not wanted.isdisjoint((canonicalize_name(plugin.name), plugin.distribution))


def find_plugins(rules: PluginsSection, entry_points: Iterable[metadata.EntryPoint] | None = None) -> list[Plugin]:
    """Discovers, checks and imports every plugin that the rules permit. Never raises because of a plugin.

    The core's own plugins come first and are not subject to ``only``; then first-party wheels, then the rest, each by
    name. If two wheels have plugins of the same name, the first one is used.
    """
    points = metadata.entry_points() if entry_points is None else entry_points
    pairs = [(_plugin(point), point) for point in points if re.fullmatch(r"llmk\.v\d+", point.group)]
    taken, core = dict[str, Plugin](), metadata.version(CORE)  # which reads files
    imported: list[tuple[Plugin, metadata.EntryPoint]] = []
    with watching(rules.import_seconds):
        for plugin, point in sorted(pairs, key=lambda pair: _precedence(pair[0])):
            _admit(plugin, point, rules, taken, core)
            if plugin.state == "compatible":
                taken[plugin.name] = plugin
                _import(plugin, point)
                imported.append((plugin, point))
    _find_replaced(imported)
    return sorted((plugin for plugin, _ in pairs), key=_precedence)


def _plugin(point: metadata.EntryPoint) -> Plugin:
    found = point.dist.metadata if point.dist else {"Name": "unknown", "Version": "0"}
    return Plugin(point.name, canonicalize_name(found["Name"]), found["Version"])


def _precedence(plugin: Plugin) -> tuple[bool, bool, str, str]:
    wheel = plugin.distribution
    return wheel != CORE, not f"{wheel}-".startswith("llmk-"), wheel, plugin.name


def _admit(
    plugin: Plugin, point: metadata.EntryPoint, rules: PluginsSection, taken: dict[str, Plugin], core: str
) -> None:
    """Decides whether a plugin may be imported, given the core's version. None of the plugin's code has run yet."""
    other = taken.get(plugin.name)
    if is_named(plugin, rules.disable):
        plugin.stop("blocked", Reason("disabled", hint="[plugins] disable names it"))
    elif rules.only and plugin.distribution != CORE and not is_named(plugin, rules.only):
        plugin.stop("blocked", Reason("disabled", hint="[plugins] only does not name it"))
    elif point.group != ENTRY_POINT_GROUP:
        hint = f"pip install -U {CORE}, or a release of {plugin.distribution} for {ENTRY_POINT_GROUP}"
        plugin.stop("incompatible", Reason("api_version", point.group, ENTRY_POINT_GROUP, hint))
    elif other is not None:
        hint = f'uninstall one, or [plugins] disable = ["{other.distribution}"] or ["{plugin.distribution}"]'
        wanted, found = (f"ids {plugin.name}.* for {p.wheel}" for p in (plugin, other))
        plugin.stop("conflicting", Reason("id_taken", wanted, found, hint))
    else:
        plugin.state = "compatible"
        _check_core_version(plugin, point.dist.requires if point.dist else None, core)


def _check_core_version(plugin: Plugin, requires: Sequence[str] | None, core: str) -> None:
    try:
        requirements = [Requirement(line) for line in requires or ()]
    except ValueError as error:
        plugin.stop("broken", Reason("bad_requirement", found=str(error).splitlines()[0]))
        return
    for needed in requirements:
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if canonicalize_name(needed.name) != CORE or not applies:
            continue
        if not needed.specifier.contains(core, prereleases=True):
            wanted = f"{CORE}{needed.specifier}"
            hint = f"pip install -U '{wanted}', or another release of {plugin.distribution}"
            plugin.stop("incompatible", Reason("core_version", wanted, f"{CORE} {core}", hint))


def _import(plugin: Plugin, point: metadata.EntryPoint) -> None:
    """Imports the spec module and registers its hooks with a separate plugin manager, which isolates plugins."""
    manager = pluggy.PluginManager("llmk")
    manager.add_hookspecs(hooks)
    try:
        with watched(f"the import of plugin {plugin.name!r} ({plugin.wheel})", plugin.way_out):
            module = point.load()
        manager.register(module, plugin.name)
        plugin.hooks = tuple(sorted(caller.name for caller in manager.get_hookcallers(module) or ()))
        manager.check_pending()
    except KeyboardInterrupt:
        raise
    except pluggy.PluginValidationError as error:
        known = [name for name in vars(hooks) if name.startswith("llmk_")]
        close = [match for name in plugin.hooks for match in get_close_matches(name, known, n=1) if name not in known]
        hint = f"did you mean {', '.join(close)}?" if close else "llmk.api.hooks has all hooks, with their arguments"
        plugin.stop("broken", Reason("bad_hook", found=str(error).splitlines()[-1], hint=hint), error)
    except BaseException as error:
        plugin.stop("broken", Reason("import_failed", point.value, describe(error)), error)
    else:
        plugin.state, plugin.manager = "loaded", manager


def _find_replaced(plugins: Iterable[tuple[Plugin, metadata.EntryPoint]]) -> None:
    """Leaves out plugins that replaced functions of llmk when they were imported."""
    by_package = replaced_by_package()
    for plugin, point in plugins:
        if names := by_package.get(point.module.partition(".")[0]):
            hint = f"pip uninstall {plugin.distribution}, or leave it out with [plugins] disable"
            plugin.stop("broken", Reason(REPLACED, "no function of llmk to be replaced", ", ".join(names), hint))
