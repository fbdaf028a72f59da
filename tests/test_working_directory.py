"""Nothing is imported from the working directory, which may be a downloaded checkpoint: not by a command, not by the
processes that it starts, not by those that plugins start in turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from served import MODEST

pytestmark = pytest.mark.slow

LLMK = (str(Path(sys.executable).with_name("llmk")),)
MODULE = (sys.executable, "-m", "llmk")
NAMES = (
    *("http", "json", "typing", "random", "socket", "tempfile", "logging", "pickle", "sitecustomize", "usercustomize"),
    *("__future__", "runpy", "pkgutil", "warnings", "re", "enum", "argparse", "subprocess"),
    *("msgspec", "torch", "numpy", "zmq", "pydantic", "transformers", "safetensors", "uvicorn", "triton", "pytest"),
    *("llmk_cpu", "llmk_models", "llmk_policies"),
)
"""Modules of Python, of others and of plugins that some process of llmk imports, or may come to import."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which every import leaves a mark and fails, with a distribution that has a plugin."""
    folder = tmp_path / "checkpoint"
    info = folder / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[llmk.v1]\nevil = evil_specs\n")
    for name in (*NAMES, "evil_specs"):
        line = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r} + ' ')"
        (folder / f"{name}.py").write_text(f"{line}\nraise SystemExit('imported from the working directory')\n")
    return folder


def imported(folder: Path) -> str:
    """What has been imported from the folder."""
    mark = folder.parent / "imported"
    return mark.read_text() if mark.exists() else ""


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, **MODEST}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "demo", "hi", "--max-tokens", "2"),
        ("run", "demo", "hi", "--max-tokens", "2", "--parallel.tensor", "2"),
        ("chat", "demo", "--max-tokens", "2"),
        ("explain",),
        ("doctor",),
        ("config", "show"),
        ("plugins",),
        ("plugins", "check", "llmk-policies"),
        ("tune", "--only", "rms_norm", "--platform.measurements", "kept"),
        ("bench", "trace", "--output", "trace.json", "--requests", "1", "--output-tokens", "2"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_commands(folder: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*LLMK, *arguments], cwd=folder, env=environment(), input="hi\n", capture_output=True, text=True, timeout=280
    )
    assert not imported(folder), done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evil" not in done.stdout


def test_module_as_command(folder: Path) -> None:
    """``python -m`` has the working directory on the path before any line of llmk runs, which takes it off again."""
    done = subprocess.run(
        [*MODULE, "plugins"], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert not imported(folder), done.stderr
    assert done.returncode == 0, done.stderr
    assert "llmk-policies" in done.stdout
    assert "evil" not in done.stdout


@pytest.mark.parametrize("command", [LLMK, MODULE], ids=["script", "module"])
def test_server(folder: Path, command: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [*command, "serve", "demo", "--port", "0"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert not imported(folder), errors
    assert line.startswith("serving "), errors
