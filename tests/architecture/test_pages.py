"""What is generated is up to date, and what is a test is collected."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import config_reference

SKIPPED = {".venv", ".git", "build", "dist", "node_modules"}


def test_configuration_page_is_current() -> None:
    changed = config_reference.difference()
    assert not changed, f"{changed}\n\ndocs/configuration.md is out of date: run `make docs`"


def test_every_option_has_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", config_reference.render(), flags=re.MULTILINE)
    assert len(rows) > 30
    assert not [name for name, meaning in rows if not meaning.strip()]


def test_every_test_file_is_collected(root: Path) -> None:
    """A test beside the paths that pytest looks into would never run, and nobody would notice."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    collected = [root / path for path in pyproject["tool"]["pytest"]["ini_options"]["testpaths"]]
    files = [file for file in root.rglob("test_*.py") if not SKIPPED & set(file.relative_to(root).parts)]
    assert len(files) > 20
    outside = [file for file in files if not any(folder in file.parents for folder in collected)]
    assert not outside, f"pytest never collects {outside}: add their folder to testpaths"
