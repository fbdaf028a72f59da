"""Lines per package, the longest files and functions, and the budgets that are to be kept.

Budgets count lines of code: without blank lines, comments and docstrings, so that nobody saves on those. Physical
lines, what a reader scrolls past, stand beside them; files and functions are measured in these. Exits with 1 where a
budget is exceeded.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("core/src/llmk")
STRANGER = Path("tests/third_party/accelerator/src")
"""A platform that a stranger would publish, of which the architecture promises that it is short."""

NOT_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)

FILE_TARGET = 400
FUNCTION_TARGET = 60
FILE_LIMIT = 500
FUNCTION_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Budget:
    """``limit`` is the most lines of code that ``files`` may have."""

    name: str
    files: tuple[Path, ...]
    limit: int

    @property
    def lines(self) -> int:
        """Lines of code."""
        return sum(code_lines(file) for file in self.files)

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
    """The budgets of the core, and of the platform that it lets others write."""
    core = python_files(root / CORE)
    beside = {root / CORE / "reference", root / CORE / "testing"}
    rest = tuple(file for file in core if not beside.intersection(file.parents))
    kernel = tuple(file for file in core if (root / CORE / "kernel") in file.parents)
    return [
        Budget("llmk without llmk.reference and llmk.testing", rest, 14_499),
        Budget("llmk.kernel", kernel, 1_000),
        Budget("a stranger's platform", tuple(python_files(root / STRANGER)), 300),
    ]


def functions(file: Path) -> Iterator[tuple[int, str, int]]:
    """Length, name and first line of every function in ``file``."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
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


def main() -> int:
    """Prints the report; 1 where a budget is exceeded."""
    print(f"{'package':24}{'code':>7}{'lines':>8}{'files':>7}")
    for name, files in packages():
        code, physical = sum(map(code_lines, files)), sum(map(physical_lines, files))
        print(f"{name:24}{code:7,}{physical:8,}{len(files):7}")
    for budget in budgets():
        state = "kept" if budget.kept else "EXCEEDED"
        physical = sum(map(physical_lines, budget.files))
        used = f"{budget.lines:,} of {budget.limit:,} lines of code ({physical:,} physical)"
        print(f"budget  {budget.name}: {used}, {state}")
    for length, place in long_files(limit=FILE_TARGET):
        print(f"long file  {place}: {length} lines (aim for {FILE_TARGET})")
    for length, place in long_functions(limit=FUNCTION_TARGET):
        print(f"long function  {place}: {length} lines (aim for {FUNCTION_TARGET})")
    return 0 if all(budget.kept for budget in budgets()) else 1


if __name__ == "__main__":
    sys.exit(main())
