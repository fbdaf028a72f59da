"""The wheels of this repository as the registry sees them, read from their ``pyproject.toml``, installed or not."""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import importlib_metadata as metadata
from generated import ROOT

from llmk.config import PluginsSection
from llmk.kernel.discovery import find_plugins
from llmk.kernel.registry import Registry

FOLDERS = ("core", "models", "backends-*", "plugins/*")


class Wheel(metadata.Distribution):
    """A folder with a ``pyproject.toml``, as if it were installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]

    def read_text(self, filename: str) -> str | None:
        """The files that say who it is and what it plugs in."""
        if filename == "METADATA":
            needs = "".join(f"Requires-Dist: {need}\n" for need in self.project.get("dependencies", ()))
            return f"Metadata-Version: 2.1\nName: {self.project['name']}\nVersion: {self.project['version']}\n{needs}"
        if filename == "entry_points.txt":
            groups = self.project.get("entry-points", {}).items()
            return "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in groups)
        return None

    def locate_file(self, path: Any) -> Any:
        """A file of the wheel, in its source."""
        return self.folder / "src" / path


@cache
def wheels() -> tuple[Wheel, ...]:
    """Every wheel of the repository that has plugins, the core first."""
    files = [file for pattern in FOLDERS for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))]
    return tuple(wheel for wheel in (Wheel(file.parent) for file in files) if "entry-points" in wheel.project)


@cache
def registry() -> Registry:
    """What they register. Raises RuntimeError where one of them can't."""
    sys.path += [str(wheel.folder / "src") for wheel in wheels()]
    rules = PluginsSection()
    points = [point for wheel in wheels() for point in wheel.entry_points]
    found = Registry(find_plugins(rules, points), rules)
    bad = [f"{plugin.name}: {'; '.join(map(str, plugin.reasons))}" for plugin in found.plugins if not plugin.is_usable]
    if bad:
        raise RuntimeError(f"plugins of this repository don't work: {bad}")
    return found
