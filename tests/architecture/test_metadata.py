"""What the wheels say of themselves: complete, alike in all of them, and true of Triton's releases."""

from __future__ import annotations

import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from first_party import registry
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from triton_versions import MINORS
from trove_classifiers import classifiers

from llmk.api import KernelSpec

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    ROOT / "pyproject.toml",
    *(file for pattern in ("*", "plugins/*") for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))),
]
PROJECTS: dict[str, dict[str, Any]] = {
    project["name"]: project for project in (tomllib.loads(file.read_text())["project"] for file in FILES)
}
FOLDERS = {name: file.parent for name, file in zip(PROJECTS, FILES, strict=True)}
ALIKE = ("version", "requires-python", "license", "license-files", "authors", "urls")
ON_NO_INDEX = {"amd-aiter"}
"""Distributions that no wheel may require, since pip would not find them."""


def requirements(name: str) -> list[Requirement]:
    """Of a distribution, those of its extras too."""
    project = PROJECTS[name]
    lines = chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    return [Requirement(line) for line in lines]


def ranges(package: str) -> dict[str, SpecifierSet]:
    """Who requires a package, in which versions."""
    return {name: need.specifier for name in PROJECTS for need in requirements(name) if need.name == package}


@pytest.mark.parametrize("name", PROJECTS)
def test_distribution_describes_itself(name: str) -> None:
    project, folder = PROJECTS[name], FOLDERS[name]
    assert {key: project[key] for key in ALIKE} == {key: PROJECTS["llmk"][key] for key in ALIKE}
    assert project["description"]
    assert (folder / project["readme"]).is_file()
    assert all((folder / file).is_file() for file in project["license-files"])
    assert project["keywords"][0] == "llmk"
    assert not set(project["classifiers"]) - classifiers
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(project["urls"])


@pytest.mark.parametrize("name", PROJECTS)
def test_what_is_required_of_llmk_exists(name: str) -> None:
    for need in requirements(name):
        if need.name.startswith("llmk"):
            assert need.name in PROJECTS, f"{name} requires {need.name}, which is no wheel of llmk"
            assert PROJECTS[need.name]["version"] in need.specifier
            assert need.extras <= set(PROJECTS[need.name].get("optional-dependencies", {}))


def test_triton_is_required_in_the_versions_that_are_tried() -> None:
    (found,) = set(ranges("triton").values())
    first, last = MINORS[0], MINORS[-1]
    assert found == SpecifierSet(f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}")
    assert len(ranges("triton")) == 4


def test_kernels_need_the_versions_that_their_wheel_requires() -> None:
    """Else a kernel would run with a version that its wheel refuses, or not run with one that it takes."""
    named = [(kernel, Requirement(line)) for kernel in registry().of(KernelSpec) for line in kernel.spec.needs.packages]
    named = [(kernel, need) for kernel, need in named if need.name not in ON_NO_INDEX]
    assert named
    for kernel, need in named:
        wheel = ranges(need.name)[kernel.plugin.distribution]
        assert need.specifier == wheel, f"{kernel.spec.id} needs {need}, its wheel {need.name}{wheel}"
