"""The directory of plugins: the wheels of this repository, and what each registers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from first_party import registry, wheels
from generated import ROOT, Page, code, table

from llmk.kernel.discovery import CORE
from llmk.kernel.first_party import CATALOGUE
from llmk.kernel.registry import HOOKS, Registered


def pages() -> Iterator[Page]:
    """The directory."""
    yield Page("docs/plugins/directory.md", {"plugin_directory.py": render})
    yield Catalogue(str(CATALOGUE.relative_to(ROOT)), {})


class Catalogue(Page):
    """What an error says of a wheel that is not installed."""

    def render(self) -> str:
        """Wheels by names, in JSON."""
        return json.dumps(catalogue(), indent=1, sort_keys=True) + "\n"


def catalogue() -> dict[str, str]:
    """The wheel of every plugin, and of what it registers under a name of its own. Raises ValueError where two have
    one name."""
    wheel_of = {plugin.name: plugin.distribution for plugin in registry().plugins}
    named: list[Registered[Any]] = []
    for kind, spec_type in (item for kinds in HOOKS.values() for item in kinds.items()):
        named += registry().of(spec_type, kind)
    pairs = [(r.spec.name, r.plugin.distribution) for r in named if hasattr(r.spec, "name")]
    for name, wheel in pairs:
        if wheel_of.setdefault(name, wheel) != wheel:
            raise ValueError(f"{name} is a name in {wheel} and in {wheel_of[name]}")
    return {name: wheel for name, wheel in wheel_of.items() if wheel != CORE}


def render() -> str:
    """A row for each wheel."""
    counts = {wheel.name: _counts(wheel.name) for wheel in wheels()}
    rows = [
        (
            f"`{wheel.name}` {wheel.version}",
            code(*(point.name for point in wheel.entry_points if point.group.startswith("llmk."))),
            counts[wheel.name],
            wheel.project["description"],
        )
        for wheel in wheels()
    ]
    return table(("wheel", "plugin", "registers", "what it is"), rows)


def _counts(distribution: str) -> str:
    """How many specs of each kind, in the order of the hooks, and which other hooks it has."""
    plugins = [plugin for plugin in registry().plugins if plugin.distribution == distribution]
    kinds: Counter[str] = Counter()
    for kind, spec_type in (item for kinds in HOOKS.values() for item in kinds.items()):
        found: list[Registered[Any]] = registry().of(spec_type, kind)
        kinds[kind] += sum(r.plugin in plugins for r in found)
    others = sorted({hook for plugin in plugins for hook in plugin.hooks if hook not in HOOKS})
    words = [f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count]
    return ", ".join([*words, *(f"`{hook}`" for hook in others)])
