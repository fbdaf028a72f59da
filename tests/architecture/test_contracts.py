"""The import contracts cover what there is: a new package can't stay outside them by being forgotten."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from size_report import source_folders


@pytest.fixture(scope="module")
def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def contracts(pyproject: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {contract["id"]: contract for contract in pyproject["tool"]["importlinter"]["contracts"]}


@pytest.fixture(scope="module")
def plugins(root: Path) -> set[str]:
    return {folder.name for folder in source_folders(root)} - {"llmk"}


def test_every_package_is_linted(pyproject: dict[str, Any], plugins: set[str]) -> None:
    assert set(pyproject["tool"]["importlinter"]["root_packages"]) == {"llmk", *plugins}


def test_every_plugin_is_bound(contracts: dict[str, dict[str, Any]], plugins: set[str]) -> None:
    assert set(contracts["core-alone"]["forbidden_modules"]) == plugins
    assert set(contracts["plugins-apart"]["modules"]) == plugins
    assert set(contracts["plugins-see-contracts"]["source_modules"]) == plugins - {"llmk_testing"}


def test_every_floor_is_bound(root: Path, contracts: dict[str, dict[str, Any]]) -> None:
    floors = {path.name for path in (root / "core/src/llmk").iterdir() if (path / "__init__.py").exists()}
    open_to_plugins = {"api", "tree", "nn", "reference"}
    assert set(contracts["floors"]["layers"]) == floors
    forbidden = {name.removeprefix("llmk.") for name in contracts["plugins-see-contracts"]["forbidden_modules"]}
    assert forbidden == floors - open_to_plugins


def test_every_package_is_type_checked_and_formatted(root: Path, pyproject: dict[str, Any]) -> None:
    folders = {str(folder.parent.relative_to(root)) for folder in source_folders(root)}
    assert folders <= set(pyproject["tool"]["ruff"]["src"])
    assert set(pyproject["tool"]["mypy"]["mypy_path"].split(":")) == {"tools", *folders}
