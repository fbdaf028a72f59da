"""The snapshot of ``llmk.api``: every public name with its signature, as plugin authors may rely on it.

Made from the source alone, so that it reads the same on every Python. Without arguments, compares it with the committed
file and exits with 1 where they differ; with ``--write``, writes the file.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
API = ROOT / "core/src/llmk/api"
SNAPSHOT = ROOT / "tests/architecture/api_snapshot.txt"

ADVICE = """\
The signatures of llmk.api changed. Plugins of other people depend on them, so:
  - adding a name, a field with a default or a hook argument is a minor change:
    run `make snapshot`, and say it in CHANGELOG.md;
  - removing or changing one breaks plugins: keep the old form for two minor versions, with a DeprecationWarning
    that names the release that drops it, and say so in CHANGELOG.md under "Deprecated"."""


def render(folder: Path = API) -> str:
    """The snapshot of all modules in ``folder``, as text."""
    lines: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        tree = ast.parse(file.read_text())
        parts = file.relative_to(folder).with_suffix("").parts
        lines.append(".".join(("llmk", "api", *(part for part in parts if part != "__init__"))))
        lines += [f"    {line}" for line in _members(tree.body)]
    return "\n".join(lines) + "\n"


def difference(folder: Path = API, snapshot: Path = SNAPSHOT) -> str:
    """What changed since the snapshot was written, as a unified diff; empty where nothing did."""
    committed = snapshot.read_text() if snapshot.exists() else ""
    rows = difflib.unified_diff(
        committed.splitlines(), render(folder).splitlines(), "committed", "now", lineterm="", n=1
    )
    return "\n".join(rows)


def _members(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and _public(node.name):
            yield from _class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _public(node.name):
            yield _function(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _public(_target(node)):
            yield ast.unparse(node)


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in (*node.bases, *node.keywords))
    yield from _decorators(node)
    yield f"class {node.name}({bases})" if bases else f"class {node.name}"
    yield from (f"    {line}" for line in _members(node.body))


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = "".join(f"{line} " for line in _decorators(node))
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{decorators}{keyword} {node.name}({ast.unparse(node.args)}){returns}"


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield from (f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)


def _public(name: str) -> bool:
    return not name.startswith("_") or name in {"__init__", "__all__"}


def main() -> int:
    """Compares or writes; 1 where the snapshot is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the snapshot")
    if parser.parse_args().write:
        SNAPSHOT.write_text(render())
        return 0
    changed = difference()
    if changed:
        print(f"{changed}\n\n{ADVICE}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
