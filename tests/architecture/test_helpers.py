"""What tests import from one another has a name that no other test file has: folders of tests share ``sys.path``, so
that which file is found would depend on which tests ran before."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a file imports by their whole name, at its top."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def ambiguous(files: Mapping[str, ast.Module]) -> list[str]:
    """Imports of a name that several of ``files`` have."""
    named = defaultdict[str, list[str]](list)
    for file in files:
        named[Path(file).stem].append(file)
    return [
        f"{file} imports {name}, which may be any of {', '.join(named[name])}"
        for file, tree in files.items()
        for name in imported(tree)
        if len(named.get(name, ())) > 1
    ]


@pytest.mark.slow
def test_what_is_imported_has_a_name_of_its_own() -> None:
    folders = [ROOT / "tests", *ROOT.glob("*/tests"), *ROOT.glob("plugins/*/tests")]
    found = {str(file.relative_to(ROOT)): file for folder in folders for file in folder.rglob("*.py")}
    assert ambiguous({name: ast.parse(file.read_text()) for name, file in found.items()}) == []


def test_it_would_be_found() -> None:
    text = "from test_attention import query_of"
    files = {"a/test_attention.py": "", "b/test_attention.py": "", "b/test_rows.py": text}
    (found,) = ambiguous({name: ast.parse(source) for name, source in files.items()})
    assert found.startswith("b/test_rows.py imports test_attention, which may be any of a/test_attention.py")
