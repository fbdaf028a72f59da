"""What finds dead code finds it. ``make dead`` runs it on the sources."""

from __future__ import annotations

from pathlib import Path

from dead_code import unused

SOURCE = """
import antigravity


def used() -> int:
    return 1


def only_tested() -> int:
    return used()


class Plugin:
    def never_called(self) -> None: ...


def named() -> str:
    return "package.module:Plugin"


named()
"""


def test_what_nothing_uses_is_found(tmp_path: Path) -> None:
    package = tmp_path / "core/src/package"
    package.mkdir(parents=True)
    (package / "module.py").write_text(SOURCE)
    tests = tmp_path / "core/tests"
    tests.mkdir()
    (tests / "test_module.py").write_text("from package.module import only_tested\n\nonly_tested()\n")
    assert [item.name for item in unused(tmp_path)] == ["antigravity", "only_tested", "never_called"]
