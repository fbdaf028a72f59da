"""Finds plugins through entry points and imports them one by one, so that a broken one harms nobody but itself."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

import importlib_metadata as metadata
import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from llmk.api import ENTRY_POINT_GROUP, Reason, hookimpl, hooks

CORE = "llmk-core"


class PluginRules(Protocol):
    """The part of the configuration that decides which plugins take part."""

    only: tuple[str, ...]
    disable: tuple[str, ...]


@dataclass(slots=True)
class Plugin:
    """A plugin and how far it got.

    ``state`` is discovered, compatible, loaded or active; or blocked, incompatible, broken or conflicting, for ``reasons``.
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
        """Distribution and version, for people."""
        return f"{self.distribution} {self.version}"

    @property
    def is_usable(self) -> bool:
        """Whether its hooks may be called."""
        return self.state in ("loaded", "active")

    def stop(self, state: str, reason: Reason, error: BaseException | None = None) -> None:
        """Takes the plugin out, for a reason."""
        self.state = state
        self.reasons.append(reason)
        if error is not None:
            self.traceback = "".join(traceback.format_exception(error))

    def call(self, hook: str, **arguments: Any) -> Any:
        """Calls one hook of this plugin alone; ``None`` where it has none. An exception quarantines the plugin."""
        if self.manager is None or hook not in self.hooks or not self.is_usable:
            return None
        try:
            results = getattr(self.manager.hook, hook)(**arguments)
            return results[0] if results else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.stop("broken", Reason("hook_raised", hook, describe(error)), error)
            return None


def describe(error: BaseException) -> str:
    """Type and first line of an exception's message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def named(plugin: Plugin, names: Iterable[str]) -> bool:
    """Whether ``names`` has the plugin's entry-point name or its distribution's."""
    wanted = {canonicalize_name(name) for name in names}
    return canonicalize_name(plugin.name) in wanted or canonicalize_name(plugin.distribution) in wanted


def find_plugins(rules: PluginRules, entry_points: Sequence[metadata.EntryPoint] | None = None) -> list[Plugin]:
    """Discovers, checks and imports every plugin that the rules admit; none of this raises because of a plugin.

    The core's own come first and are not subject to ``only``; then first-party wheels, then the rest, each by name. That order decides
    who keeps a name that two wheels claim.
    """
    found = list(metadata.entry_points()) if entry_points is None else list(entry_points)
    major = re.compile(r"llmk\.v\d+")
    pairs = [(_plugin(point), point) for point in found if major.fullmatch(point.group)]
    pairs.sort(key=lambda pair: _precedence(pair[0]))
    taken: dict[str, Plugin] = {}
    for plugin, point in pairs:
        _admit(plugin, point, rules, taken)
        if plugin.state == "discovered":
            taken[plugin.name] = plugin
            _check_compatible(plugin, point)
        if plugin.state == "compatible":
            _import(plugin, point)
    return [plugin for plugin, _ in pairs]


def _plugin(point: metadata.EntryPoint) -> Plugin:
    name, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "0")
    return Plugin(point.name, canonicalize_name(name), version)


def _precedence(plugin: Plugin) -> tuple[bool, bool, str, str]:
    wheel = plugin.distribution
    return wheel != CORE, not (wheel == "llmk" or wheel.startswith("llmk-")), wheel, plugin.name


def _admit(plugin: Plugin, point: metadata.EntryPoint, rules: PluginRules, taken: dict[str, Plugin]) -> None:
    if named(plugin, rules.disable):
        plugin.stop("blocked", Reason("disabled", hint="plugins.disable names it"))
    elif rules.only and plugin.distribution != CORE and not named(plugin, rules.only):
        plugin.stop("blocked", Reason("disabled", hint="plugins.only does not name it"))
    elif point.group != ENTRY_POINT_GROUP:
        hint = f"pip install -U {CORE}, or a release of {plugin.distribution} for {ENTRY_POINT_GROUP}"
        plugin.stop("incompatible", Reason("api_version", point.group, ENTRY_POINT_GROUP, hint))
    elif plugin.name in taken:
        other = taken[plugin.name]
        plugin.stop("conflicting", _conflict(plugin, other))


def _conflict(plugin: Plugin, other: Plugin) -> Reason:
    return Reason(
        "id_taken",
        f"ids {plugin.name}.* by {plugin.wheel}",
        f"ids {plugin.name}.* by {other.wheel}",
        f'uninstall one, or leave one out: [plugins] disable = ["{other.distribution}"] '
        f'or disable = ["{plugin.distribution}"]',
    )


def _check_compatible(plugin: Plugin, point: metadata.EntryPoint) -> None:
    installed = metadata.version(CORE)
    for line in (point.dist.requires if point.dist else None) or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            plugin.stop("broken", Reason("bad_requirement", found=f"{line!r}: {error}"))
            return
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) != CORE or not applies:
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wanted = f"{CORE}{requirement.specifier}"
            hint = f"pip install -U '{wanted}', or another release of {plugin.distribution}"
            plugin.stop("incompatible", Reason("core_version", wanted, f"{CORE} {installed}", hint))
            return
    plugin.state = "compatible"


def _import(plugin: Plugin, point: metadata.EntryPoint) -> None:
    """Imports the spec module and registers its hooks with a manager of the plugin's own, which keeps plugins apart."""
    manager = pluggy.PluginManager("llmk")
    manager.add_hookspecs(hooks)
    try:
        module = point.load()
        unmarked = _unmarked(module)
        if unmarked:
            raise TypeError(f"{unmarked} is not marked with @hookimpl")
        manager.register(module, plugin.name)
        plugin.hooks = tuple(sorted(caller.name for caller in manager.get_hookcallers(module) or ()))
        manager.check_pending()
    except KeyboardInterrupt:
        raise
    except pluggy.PluginValidationError as error:
        plugin.stop("broken", Reason("bad_hook", found=str(error).splitlines()[-1], hint=_suggest(plugin)), error)
    except BaseException as error:
        plugin.stop("broken", Reason("import_failed", point.value, describe(error)), error)
    else:
        plugin.state, plugin.manager = "loaded", manager


def _known_hooks() -> list[str]:
    return [name for name in vars(hooks) if name.startswith("llmk_")]


def _unmarked(module: object) -> str:
    """The name of a function that is named as a hook and defined in the module, but not marked as one."""
    for name in _known_hooks():
        function = getattr(module, name, None)
        own = getattr(function, "__module__", None) == getattr(module, "__name__", "")
        if function is not None and own and not hasattr(function, f"{hookimpl.project_name}_impl"):
            return name
    return ""


def _suggest(plugin: Plugin) -> str:
    unknown = [name for name in plugin.hooks if name not in _known_hooks()]
    close = [get_close_matches(name, _known_hooks(), n=1) for name in unknown]
    guesses = [match[0] for match in close if match]
    return f"did you mean {', '.join(guesses)}?" if guesses else ""
