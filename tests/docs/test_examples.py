"""Examples in the documentation are run: fenced blocks below ``<!-- test -->`` or ``<!-- test with a server -->``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from served import Served

from llmk.config import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
)
BLOCK = re.compile(r"^<!-- test(?P<server> with a server)? -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
WRITTEN_ADDRESS = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Example:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    needs_server: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def examples() -> Iterator[Example]:
    """Every marked block of every page."""
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            name = str(page.relative_to(ROOT))
            yield Example(name, line, found["language"], found["text"], bool(found["server"]))


EXAMPLES = list(examples())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("server") / "log", "--port", "0")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example(example: Example, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = example.text
    if example.needs_server:
        assert WRITTEN_ADDRESS in text
        text = text.replace(WRITTEN_ADDRESS, request.getfixturevalue("server").url)
    if example.language == "toml":
        (tmp_path / "llmk.toml").write_text(text)
        load(cwd=tmp_path, environ={})
        return
    commands = {"python": [sys.executable, "-c", text], "sh": ["sh", "-eux", "-c", text]}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        commands[example.language],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, f"{example}:\n{done.stdout}{done.stderr}"
    assert done.stdout.strip(), f"{example} shows nothing"


def test_the_readme_has_examples_of_every_kind() -> None:
    kinds = {(example.language, example.needs_server) for example in EXAMPLES if example.page == "README.md"}
    assert {("python", True), ("python", False), ("sh", False), ("toml", False)} <= kinds


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"
