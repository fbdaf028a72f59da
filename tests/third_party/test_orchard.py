"""The stranger's wheel of several kinds, with which the conformance kit is measured."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from scratch import LLMK, run

WHEEL = Path(__file__).parent / "orchard"
MISTAKES = tomllib.loads((WHEEL / "mistakes.toml").read_text())


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_in_the_wheel(kind: str) -> None:
    assert len(MISTAKES[kind]) >= 10
    assert max(Counter(mistake["what"] for mistake in MISTAKES[kind]).values()) == 1
    for mistake in MISTAKES[kind]:
        source = (WHEEL / "src" / "llmk_orchard" / f"{mistake['module']}.py").read_text()
        assert source.count(mistake["old"]) == 1, mistake["what"]
        compile(source.replace(mistake["old"], mistake["new"]), mistake["module"], "exec")


@pytest.mark.slow
def test_it_is_green(tmp_path: Path) -> None:
    shutil.copytree(WHEEL / "src" / "llmk_orchard", tmp_path / "llmk_orchard")
    info = tmp_path / "llmk_orchard-1.0.dist-info"
    info.mkdir()
    head = "Metadata-Version: 2.1\nName: llmk-orchard\nVersion: 1.0\nRequires-Dist: llmk-core>=0.1,<0.2\n"
    (info / "METADATA").write_text(head)
    (info / "entry_points.txt").write_text(
        "[llmk.v1]\norchard = llmk_orchard.specs\ngrove = llmk_orchard.grove_specs\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = run([sys.executable, "-c", LLMK, "plugins", "check", "llmk-orchard"], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "\ngreen: " in done.stdout
