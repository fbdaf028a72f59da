"""What the launcher says without a cluster: whether Ray is fit, and how actors become places."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from served import LLMK

from llmk.api import PlatformFacts
from llmk_ray.launcher import ordered

FACTS = PlatformFacts(name="cpu", arch="x", device_type="cpu")
HIDE = """
import importlib.metadata as metadata
version = metadata.version
def hidden(name):
    if name == "ray":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = hidden
"""


def explained(folder: Path) -> str:
    """What ``llmk explain`` says where ``folder`` comes first on the path."""
    done = subprocess.run(
        [*LLMK, "explain", "--select.launcher.use", "ray", "--platform.use", "cpu"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_it_is_explained(tmp_path: Path) -> None:
    said = explained(tmp_path)
    assert "ray.launcher" in said
    assert "pinned by [select.launcher] use" in said


@pytest.mark.parametrize(("version", "is_known"), [("2.40.0", True), ("2.39.1", False), ("3.0.0", False)])
def test_versions_of_ray(version: str, is_known: bool, tmp_path: Path) -> None:
    info = tmp_path / f"ray-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    said = explained(tmp_path)
    assert ("can't serve" not in said) is is_known, said
    assert is_known or f"wanted ray >= 2.40, < 3.0, found {version}" in said


def test_without_ray(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    said = explained(tmp_path)
    assert "ray is pinned by [select.launcher] use, but can't serve" in said
    assert "wanted ray, found none" in said


def answer(node: str, *devices: str) -> dict[str, Any]:
    return {"host": node, "address": f"10.0.0.{ord(node)}", "devices": {"GPU": list(devices)}}


def test_places_on_a_node_are_next_to_each_other() -> None:
    """The fullest node is first; a rank's device is one of those that the ranks on its node have."""
    order, places = ordered([answer("a", "3"), answer("b", "0"), answer("c", "7"), answer("b", "1")], "GPU")
    assert order == [1, 3, 0, 2]
    assert [(place.node[0], place.index, place.devices) for place in places] == [
        ("b", 0, ("0", "1")),
        ("b", 1, ("0", "1")),
        ("a", 0, ("3",)),
        ("c", 0, ("7",)),
    ]


def test_specs_import_no_ray() -> None:
    code = "import sys, llmk_ray.specs, llmk_ray.launcher; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
