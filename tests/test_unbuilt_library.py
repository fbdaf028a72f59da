"""A wheel of ``llmk-backends-cpu`` that was built without a C++ compiler serves, and says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmk.cli.doctor import NOTE, examine
from llmk.config import load
from llmk.engine.launch import build_core
from llmk.planning.boot import boot
from llmk.planning.report import render_table
from llmk_cpu.native import library
from llmk_testing.checkpoints import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, on a machine where the library's file is not there."""
    monkeypatch.setattr(library, "FILE", "absent.so")
    return write_checkpoint(tmp_path / "qwen3", "qwen3")


def test_reports_name_the_kernels_and_how_to_get_them(checkpoint: Path) -> None:
    settings = load({"model.path": str(checkpoint)}, environ={})
    (line,) = [line for line in render_table(boot(settings).plan).splitlines() if line.startswith("not built: ")]
    (finding,) = [finding for finding in examine(settings) if finding.text.startswith("not built: ")]
    assert (finding.state, finding.text) == (NOTE, line)
    for part in ("cpu.attention", "cpu.linear", "cpu.rms_norm", "llmk-backends-cpu", "g++", "slower"):
        assert part in line


def test_torch_serves_instead(checkpoint: Path) -> None:
    booted = boot(load({"model.path": str(checkpoint), "model.max_model_len": 64}, environ={}))
    ids = {piece.id for choice in booted.plan.all_choices() for piece in choice.pieces}
    assert "cpu.linear_torch" in ids
    assert not ids & {"cpu.linear", "cpu.linear_many", "cpu.attention", "cpu.rms_norm", "cpu.silu_and_mul"}
    build_core(booted)
