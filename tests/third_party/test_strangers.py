"""The strangers' wheels of several kinds, with which the conformance kit is measured."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from scratch import LLMK, run

WHEELS = {
    name: Path(__file__).parent / name
    for name in ("orchard", "meadow", "harbor", "estuary", "fjord", "delta", "lagoon")
}
MISTAKES = {name: tomllib.loads((wheel / "mistakes.toml").read_text()) for name, wheel in WHEELS.items()}


@pytest.mark.parametrize(("wheel", "kind"), [(wheel, kind) for wheel, kinds in MISTAKES.items() for kind in kinds])
def test_mistakes_are_in_the_wheel(wheel: str, kind: str) -> None:
    mistakes = MISTAKES[wheel][kind]
    assert len(mistakes) >= 10
    assert max(Counter(mistake["what"] for mistake in mistakes).values()) == 1
    for mistake in mistakes:
        module = mistake["module"]
        path = WHEELS[wheel] / "src" / f"llmk_{wheel}" / (module if "." in module else f"{module}.py")
        source = path.read_text()
        assert source.count(mistake["old"]) == 1, mistake["what"]
        if path.suffix == ".py":
            compile(source.replace(mistake["old"], mistake["new"]), module, "exec")


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("wheel", WHEELS)
def test_it_is_green(wheel: str, tmp_path: Path) -> None:
    shutil.copytree(WHEELS[wheel] / "src" / f"llmk_{wheel}", tmp_path / f"llmk_{wheel}")
    project = tomllib.loads((WHEELS[wheel] / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"llmk_{wheel}-1.0.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n{needs}")
    entries = "".join(f"{name} = {module}\n" for name, module in project["entry-points"]["llmk.v1"].items())
    (info / "entry_points.txt").write_text(f"[llmk.v1]\n{entries}")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = run(
        [sys.executable, "-c", LLMK, "plugins", "check", project["name"]], cwd=tmp_path, env=environ, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "\ngreen: " in done.stdout
