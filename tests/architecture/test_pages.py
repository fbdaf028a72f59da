"""What is generated is up to date, and what is a test is collected."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import config_reference
import feature_matrix
import http_reference
import pages
import pytest
import vocabulary
from generated import Page

SKIPPED = {".cache", ".venv", ".git", "build", "dist", "node_modules"}


PAGES = list(pages.pages())


@pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])
def test_what_is_made_of_a_page_is_current(page: Page) -> None:
    changed = page.difference()
    assert not changed, f"{changed}\n\n{page.path} is out of date: run `make docs`"


def test_every_block_is_made_by_something(root: Path) -> None:
    """A block that no tool knows would be stale for ever."""
    made = {page.path for page in PAGES if page.makers}
    files = {
        str(file.relative_to(root)) for file in (root / "docs").rglob("*.md") if "<!-- made by" in file.read_text()
    }
    assert files == made


def test_features_and_reason_codes_have_a_meaning(root: Path) -> None:
    """Words that platforms and kernels match by are in a table, which has no others."""
    text = (root / vocabulary.PAGE).read_text()
    by_hand = re.sub(r"<!-- made by.*?<!-- end -->", "", text, flags=re.DOTALL)
    told = {title: set(re.findall(r"`(\w+)`", cells)) for title, cells in _first_cells(by_hand)}
    assert vocabulary.features() <= told["Features"]
    assert vocabulary.reason_codes() <= told["Reason codes"]


def test_features_that_kernels_need_are_published_by_a_platform() -> None:
    """A misspelt feature would take a kernel out of every plan, and nobody would notice."""
    published = {feature for facts in vocabulary.known() for feature in facts.features}
    assert {feature for r in vocabulary.kernels() for feature in r.spec.needs.features} <= published


def test_every_kernel_serves_on_a_known_device() -> None:
    """The matrix has a section for each platform; a kernel that is in none of them serves nowhere."""
    text = feature_matrix.render()
    assert all(f"\n## `{platform.spec.name}`\n" in f"\n{text}" for platform in vocabulary.registry().platforms)
    assert not [r.spec.id for r in vocabulary.kernels() if f"| `{r.spec.id}` |" not in text]


def test_the_server_page_has_every_request_model() -> None:
    """A body that a route takes has its fields on the page."""
    asked = {kind for route in http_reference.routes_of_the_server() for kind in http_reference.bodies(route)}
    assert asked
    assert asked <= set(http_reference.MODELS.values())


def _first_cells(text: str) -> Iterator[tuple[str, str]]:
    """The first cells of all tables below each heading."""
    for section in text.split("\n## ")[1:]:
        yield section.partition("\n")[0], "\n".join(re.findall(r"^\|([^|]*)\|", section, flags=re.MULTILINE))


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
