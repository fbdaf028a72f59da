"""Lines per package, the longest files and functions, and the budgets that the core must keep.

Lines are physical lines of Python: what a reader scrolls past. Exits with 1 where a budget is exceeded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("core/src/llmk")

FILE_TARGET = 400
FUNCTION_TARGET = 60
FILE_LIMIT = 500
FUNCTION_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Budget:
    """``limit`` is the most lines that ``lines`` may count."""

    name: str
    lines: int
    limit: int

    @property
    def kept(self) -> bool:
        """Whether the budget is kept."""
        return self.lines <= self.limit


def source_folders(root: Path = ROOT) -> list[Path]:
    """Every ``src/<package>`` folder of the workspace, in order of path."""
    folders = (*root.glob("*/src/*"), *root.glob("plugins/*/src/*"))
    return sorted(path for path in folders if path.is_dir() and not path.name.endswith(".egg-info"))


def python_files(folder: Path) -> list[Path]:
    """All Python files below ``folder``, in order of path."""
    return sorted(folder.rglob("*.py"))


def count_lines(files: list[Path]) -> int:
    """Physical lines of ``files``."""
    return sum(len(file.read_text().splitlines()) for file in files)


def packages(root: Path = ROOT) -> list[tuple[str, list[Path]]]:
    """Name and files of every package; the core is told floor by floor."""
    rows: list[tuple[str, list[Path]]] = []
    for folder in source_folders(root):
        if folder == root / CORE:
            floors = [(f"llmk.{floor.name}", python_files(floor)) for floor in sorted(folder.iterdir())]
            rows += [(name, files) for name, files in floors if files]
        elif files := python_files(folder):
            rows.append((folder.name, files))
    return rows


def budgets(root: Path = ROOT) -> list[Budget]:
    """The budgets of the core, with what is used of them."""
    core = python_files(root / CORE)
    reference = [file for file in core if (root / CORE / "reference") in file.parents]
    kernel = [file for file in core if (root / CORE / "kernel") in file.parents]
    return [
        Budget("llmk without llmk.reference", count_lines(core) - count_lines(reference), 8_999),
        Budget("llmk.kernel", count_lines(kernel), 1_000),
    ]


def functions(file: Path) -> Iterator[tuple[int, str, int]]:
    """Length, name and first line of every function in ``file``."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name, node.lineno


def long_files(root: Path = ROOT, limit: int = FILE_LIMIT) -> list[tuple[int, str]]:
    """Source files of more than ``limit`` lines, longest first."""
    files = [file for _, group in packages(root) for file in group]
    sized = [(count_lines([file]), str(file.relative_to(root))) for file in files]
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


def main() -> int:
    """Prints the report; 1 where a budget is exceeded."""
    print("lines of Python")
    for name, files in packages():
        print(f"  {name:24}{count_lines(files):7,}  in {len(files)} files")
    for budget in budgets():
        state = "kept" if budget.kept else "EXCEEDED"
        print(f"budget  {budget.name}: {budget.lines:,} of {budget.limit:,} lines, {state}")
    for length, place in long_files(limit=FILE_TARGET):
        print(f"long file  {place}: {length} lines (aim for {FILE_TARGET})")
    for length, place in long_functions(limit=FUNCTION_TARGET):
        print(f"long function  {place}: {length} lines (aim for {FUNCTION_TARGET})")
    return 0 if all(budget.kept for budget in budgets()) else 1


if __name__ == "__main__":
    sys.exit(main())
