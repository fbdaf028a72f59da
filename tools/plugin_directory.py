"""The directory of plugins: the wheels of this repository, and what each registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from first_party import registry, wheels
from generated import Page, code, table

from llmk.kernel.registry import HOOKS, Registered


def pages() -> Iterator[Page]:
    """The directory."""
    yield Page("docs/plugins/directory.md", {"plugin_directory.py": render})


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
    for kind, spec_type in HOOKS.values():
        found: list[Registered[Any]] = registry().of(spec_type, kind)
        kinds[kind] += sum(r.plugin in plugins for r in found)
    others = sorted({hook for plugin in plugins for hook in plugin.hooks if hook not in HOOKS})
    words = [f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count]
    return ", ".join([*words, *(f"`{hook}`" for hook in others)])
