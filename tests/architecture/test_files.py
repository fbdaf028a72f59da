"""A checkpoint is read through ``llmk.api.checkpoint`` alone, which looks at links, devices and sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for folder in ("core/src", "models/src", *(str(path) for path in ROOT.glob("plugins/*/src")))
    for file in (ROOT / folder).rglob("*.py")
    if "testing" not in file.parts
)
READING = {"open", "read_text", "read_bytes", "safe_open", "load_file", "from_file", "memmap", "is_file", "exists"}
"""What reads a file by its path, or follows links to look at it."""


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls of ``READING`` on or with something that is made of a checkpoint's ``path``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            inside = [node.func, *node.args]
            if name in READING and any(is_path(part) for each in inside for part in ast.walk(each)):
                yield node.lineno, name


def is_path(node: ast.AST) -> bool:
    """``checkpoint.path``, or something else that is called so, and ``file.path`` of a checkpoint's file."""
    if not isinstance(node, ast.Attribute) or node.attr != "path":
        return False
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return owner in ("checkpoint", "file", "weights")


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_checkpoints_are_read_in_one_place(file: Path) -> None:
    assert list(uses(ast.parse(file.read_text()))) == []


def test_it_would_be_found() -> None:
    for text in ("(checkpoint.path / name).read_text()", "open(self.checkpoint.path)", "np.memmap(chunk.file.path)"):
        assert len(list(uses(ast.parse(text)))) == 1, text
