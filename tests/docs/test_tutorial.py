"""Tutorials are followed to the letter, in an environment that has llmk's wheels and nothing of this repository."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from scratch import Environment, build_wheels, link_dependencies

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("tutorial", "add-a-model")
WHEELS = (
    "core",
    "models",
    "backends-cpu",
    "plugins/parsers",
    "plugins/policies",
    "plugins/quantization",
    "plugins/testing",
)
BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<language>sh|python|toml)\n(?P<text>.*?)^```$", re.M | re.S)
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""What pip would fetch is there already. (Of this variable, 0 means: without isolation.)"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``mark`` is the comment above it: ``fails``, or ``not run: …``."""

    line: int
    mark: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """Where a block that is a file belongs, as its first line says."""
        found = re.match(r"# (\S+)\n", self.text)
        assert found, f"the block at line {self.line} doesn't say which file it is"
        return found[1]


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page, in their order."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        yield Block(text.count("\n", 0, found.start()) + 1, found["mark"] or "", found["language"], found["text"])


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Environment:
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "shared"
    wheels = build_wheels({name.replace("/", "-"): ROOT / name for name in WHEELS}, shared / "wheels")
    environment = Environment.create(base / "tutorial", link_dependencies(shared / "dependencies"))
    environment.install(*wheels.values())
    hack = "_distutils_hack"  # setuptools builds with it, and it isn't among the dependencies
    (environment.site_packages / hack).symlink_to(Path(sysconfig.get_path("purelib")) / hack)
    return environment


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PAGES)
def test_the_tutorial_works(name: str, environment: Environment, tmp_path: Path) -> None:
    page = ROOT / f"docs/plugins/{name}.md"
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("LLMK", "PYTHON"))}
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**plain, **OFFLINE, "PATH": path, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = 0
    for block in blocks(page):
        if block.mark.startswith("not run"):
            continue
        if block.language != "sh":
            file = tmp_path / block.file
            assert file.parent.exists(), f"{block.file} of line {block.line} lies in a folder that nothing made"
            file.write_text(block.text)
            continue
        done = subprocess.run(
            ["sh", "-eu", "-c", block.text], cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300
        )
        output = f"{page.name}:{block.line}\n{block.text}\n{done.stdout}{done.stderr}"
        assert (done.returncode != 0) == (block.mark == "fails"), output
        assert "Traceback" not in done.stdout + done.stderr, output
        ran += 1
    assert ran >= {"tutorial": 9, "add-a-model": 2}[name]
    if name != "tutorial":  # which takes its wheel out again itself
        environment.uninstall("llmk-acme")
    assert "acme" not in environment.llmk("plugins", cwd=tmp_path).stdout
