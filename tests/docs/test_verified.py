"""The table of verified chips is made of the files that people send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import verified


def record(platform: str, date: str, **changes: Any) -> dict[str, Any]:
    parts = {
        "conformance": {"found": {"platform": {"passed": 5, "failed": 0, "skipped": 1}}, "notes": []},
        "tokens": {"found": {"float32": {"equal": 9, "tokens": 9}}, "notes": []},
        "timings": {"found": {}, "notes": ["the machine was busy (a load of 9)"]},
    }
    given = {"platform": platform, "date": date, "verdict": "verified", "by": "", "thorough": False}
    return {**given, "machine": {"device": "A | B"}, "versions": {"llmk-core": "0.1.0"}, "parts": parts, **changes}


def test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "FOLDER", tmp_path)
    files = {
        "old.json": record("xpu/bmg", "2026-01-01T00:00:00", by="Ada"),
        "new.json": record("xpu/bmg", "2026-02-01T00:00:00", thorough=True),
        "bad.json": record("rocm/gfx942", "2026-01-05T00:00:00", verdict="failed"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(json.dumps(text))
    lines = verified.render().splitlines()
    rows = [line for line in lines if ".json" in line]
    assert [name for row in rows for name in files if name in row] == ["bad.json", "new.json", "old.json"]
    assert "**failed**, 2026-01-05" in rows[0]
    assert r"A \| B" in rows[1]
    assert "[thorough](verified/new.json)" in rows[1]
    assert "5 passed, 1 skipped" in rows[1]
    assert "(a busy machine)" in rows[1]
    assert "| Ada |" in rows[2]
    waiting = next(line for line in lines if line.startswith("| `xpu`"))
    assert "`xpu/pvc`" in waiting
    assert "`xpu/bmg`" not in waiting
    assert "`rocm/gfx942`" in next(line for line in lines if line.startswith("| `rocm`")), "a failure is not verified"


def test_the_repository_has_a_file_of_a_cpu() -> None:
    records = [json.loads(file.read_text()) for file in verified.FOLDER.glob("*.json")]
    assert any(each["platform"].startswith("cpu/") and each["verdict"] == "verified" for each in records)
