"""The machine as a probe may see it: files, environment and installed packages, each replaceable in tests."""

from __future__ import annotations

import os
import platform as _platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from llmk.api.platform import PlatformFacts
from llmk.api.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Host:
    """What a platform's probe reads. ``root`` stands in front of every path, so that a fixture tree can play a
    machine."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    machine: str = field(default_factory=_platform.machine)
    system: str = field(default_factory=_platform.system)

    def path(self, path: str) -> Path:
        """``path`` (absolute) under this host's root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of a file, ``""`` where it can't be read."""
        try:
            return self.path(path).read_text(errors="replace")
        except OSError:
            return ""

    def has_module(self, name: str) -> bool:
        """Whether a Python module could be imported, without importing it."""
        try:
            return find_spec(name) is not None
        except (ImportError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class Probe:
    """A platform's answer: usable here or not and why, and the facts of what is here."""

    verdict: Verdict
    facts: PlatformFacts | None = None
