"""Every distribution requires what it imports, or offers it as an extra, so that it works wherever plain pip put it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from size_report import source_folders

ROOT = Path(__file__).resolve().parents[2]

PROVIDERS = {"llmk": ["llmk-core"], "flashinfer": ["flashinfer-python"]}
"""Distributions of packages that need not be installed here."""
ON_NO_INDEX = {"aiter"}
"""Packages of vendors that plain pip can't put anywhere: kernels that use them look for them."""


def imported_packages(file: Path) -> set[str]:
    """Top-level packages that a file imports, at its top or within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("folder", source_folders(ROOT), ids=lambda folder: folder.name)
def test_imports_are_required(folder: Path) -> None:
    project = tomllib.loads((folder.parents[1] / "pyproject.toml").read_text())["project"]
    extras = (line for extra in project.get("optional-dependencies", {}).values() for line in extra)
    required = {re.split(r"[^\w.-]", line)[0].lower() for line in (*project["dependencies"], *extras)}
    providers = packages_distributions() | PROVIDERS
    missing: dict[str, str] = {}
    for file in sorted(file for file in folder.rglob("*.py") if "templates" not in file.parts):
        for package in imported_packages(file) - set(sys.stdlib_module_names) - ON_NO_INDEX - {folder.name}:
            names = {name.lower().replace("_", "-") for name in providers.get(package, [package])}
            if not names & {name.replace("_", "-") for name in required}:
                missing[package] = str(file.relative_to(ROOT))
    assert not missing, f"{project['name']} imports what its pyproject.toml does not require: {missing}"
