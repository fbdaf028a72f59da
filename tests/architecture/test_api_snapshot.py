"""The signatures of ``llmk.api`` change on purpose or not at all."""

from __future__ import annotations

from pathlib import Path

import api_snapshot


def test_snapshot_is_current() -> None:
    changed = api_snapshot.difference()
    assert not changed, f"{changed}\n\n{api_snapshot.ADVICE}"


def test_snapshot_notices(tmp_path: Path) -> None:
    module, snapshot = tmp_path / "thing.py", tmp_path / "snapshot.txt"
    module.write_text("def run(x: int) -> int:\n    return x\n")
    snapshot.write_text(api_snapshot.render(tmp_path))
    assert not api_snapshot.difference(tmp_path, snapshot)

    module.write_text("def run(x: int) -> int:\n    return x + 1\n\n\ndef _private() -> None: ...\n")
    assert not api_snapshot.difference(tmp_path, snapshot), "bodies and private names are no part of it"

    module.write_text("def run(x: int, y: int = 0) -> int:\n    return x\n")
    assert "+    def run(x: int, y: int=0) -> int" in api_snapshot.difference(tmp_path, snapshot)
