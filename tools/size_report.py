"""Lines per package, and the files, functions and folders that exceed the limits. Exits with 1 where there are any.

Totals are reported and have no limit: one bends where code goes. They count lines of code, without blank lines,
comments and docstrings, so that nobody saves on those, and physical lines, what a reader scrolls past; files and
functions are measured in the latter. A platform that a stranger writes has a limit, since it measures the contract.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("core/src/llmk")
STRANGER = Path("tests/third_party/accelerator/src")
"""A platform that a stranger would publish."""

NOT_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)

FILE_LIMIT = 400
FUNCTION_LIMIT = 60
FOLDER_LIMIT = 20
"""Modules of a folder of the core, ``__init__.py`` aside."""
STRANGER_LIMIT = 300


def source_folders(root: Path = ROOT) -> list[Path]:
    """Every ``src/<package>`` folder of the workspace, in order of path."""
    folders = (*root.glob("*/src/*"), *root.glob("plugins/*/src/*"))
    return sorted(path for path in folders if path.is_dir() and not path.name.endswith(".egg-info"))


def python_files(folder: Path) -> list[Path]:
    """All Python files below ``folder``, in order of path."""
    return sorted(folder.rglob("*.py"))


def physical_lines(file: Path) -> int:
    """All lines of ``file``."""
    return len(file.read_text().splitlines())


def code_lines(file: Path) -> int:
    """Lines of ``file`` that hold code: no blank lines, no comments, no docstrings."""
    source = file.read_text()
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def packages(root: Path = ROOT) -> list[tuple[str, list[Path]]]:
    """Name and files of every package; the core floor by floor."""
    rows: list[tuple[str, list[Path]]] = []
    for folder in source_folders(root):
        if folder == root / CORE:
            floors = [(f"llmk.{floor.name}", python_files(floor)) for floor in sorted(folder.iterdir())]
            rows += [(name, files) for name, files in floors if files]
        elif files := python_files(folder):
            rows.append((folder.name, files))
    return rows


def totals(root: Path = ROOT) -> list[tuple[str, int, int]]:
    """Name, lines of code and physical lines of what the architecture speaks of as one thing."""
    core = python_files(root / CORE)
    apart = {root / CORE / "reference"}
    groups = {
        "llmk without llmk.reference": [f for f in core if not apart.intersection(f.parents)],
        "llmk.kernel": [f for f in core if (root / CORE / "kernel") in f.parents],
        "a stranger's platform": python_files(root / STRANGER),
    }
    return [(name, sum(map(code_lines, files)), sum(map(physical_lines, files))) for name, files in groups.items()]


def functions(file: Path) -> Iterator[tuple[int, str, int]]:
    """Length, name and first line of every function in ``file``, GPU kernels aside: they can't share local state."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
            ast.unparse(decorator).startswith(("triton.jit", "gluon.jit")) for decorator in node.decorator_list
        ):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name, node.lineno


def long_files(root: Path = ROOT, limit: int = FILE_LIMIT) -> list[tuple[int, str]]:
    """Source files of more than ``limit`` lines, longest first."""
    files = [file for _, group in packages(root) for file in group]
    sized = [(physical_lines(file), str(file.relative_to(root))) for file in files]
    return sorted((row for row in sized if row[0] > limit), reverse=True)


def long_functions(root: Path = ROOT, limit: int = FUNCTION_LIMIT) -> list[tuple[int, str]]:
    """Functions of more than ``limit`` lines, longest first."""
    rows = [
        (length, f"{file.relative_to(root)}:{line} {name}")
        for _, group in packages(root)
        for file in group
        for length, name, line in functions(file)
        if length > limit
    ]
    return sorted(rows, reverse=True)


def full_folders(root: Path = ROOT, limit: int = FOLDER_LIMIT) -> list[tuple[int, str]]:
    """Folders of the core with more than ``limit`` modules, fullest first."""
    counts = Counter(file.parent for file in python_files(root / CORE) if file.name != "__init__.py")
    return sorted(
        ((count, str(folder.relative_to(root))) for folder, count in counts.items() if count > limit), reverse=True
    )


def main() -> int:
    """Prints the report; 1 where a limit is exceeded."""
    print(f"{'package':24}{'code':>7}{'lines':>8}{'files':>7}")
    for name, files in packages():
        code, physical = sum(map(code_lines, files)), sum(map(physical_lines, files))
        print(f"{name:24}{code:7,}{physical:8,}{len(files):7}")
    for name, code, physical in totals():
        print(f"total  {name}: {code:,} lines of code ({physical:,} physical)")
    for length, place in long_files():
        print(f"long file  {place}: {length} lines, at most {FILE_LIMIT}")
    for length, place in long_functions():
        print(f"long function  {place}: {length} lines, at most {FUNCTION_LIMIT}")
    for count, folder in full_folders():
        print(f"full folder  {folder}: {count} modules, at most {FOLDER_LIMIT}")
    return 1 if long_files() or long_functions() or full_folders() else 0


if __name__ == "__main__":
    sys.exit(main())
