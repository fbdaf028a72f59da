"""Python processes are started without the working directory, which may be a downloaded checkpoint, on the path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from size_report import source_folders

ROOT = Path(__file__).resolve().parents[2]
GIVEN = "process.arguments", "arguments"
"""Arguments of a :class:`~llmk.api.RankProcess`, as launchers have them: the core's, which start with ``-P``."""
LAUNCHERS = "local_launcher.py", "warden.py"
"""Files in which these names are such arguments."""


def safe(command: ast.List | ast.Tuple, file: str) -> bool:
    """Whether a command line has ``-P`` behind the interpreter, or arguments that the core gives, which start so."""
    second = command.elts[1]
    if isinstance(second, ast.Starred):
        return file in LAUNCHERS and ast.unparse(second.value) in GIVEN
    return isinstance(second, ast.Constant) and second.value == "-P"


def unsafe(source: str, file: str) -> Iterator[int]:
    """Lines in which ``sys.executable`` is used for anything but the start of a safe command line."""
    nodes = list(ast.walk(ast.parse(source)))
    commands = [node for node in nodes if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1]
    started = {id(command.elts[0]) for command in commands if safe(command, file)}
    for node in nodes:
        imported = isinstance(node, ast.ImportFrom) and any(name.name == "executable" for name in node.names)
        used = isinstance(node, ast.Attribute) and node.attr == "executable" and id(node) not in started
        if imported or used:
            yield node.lineno


def test_python_is_started_without_the_working_directory() -> None:
    """By ``llmk.kernel.interpreter``, or with ``-P``."""
    files = (file for folder in source_folders(ROOT) for file in folder.rglob("*.py"))
    read = (file for file in files if "templates" not in file.parts and file.name != "interpreter.py")
    found = [f"{file.relative_to(ROOT)}:{line}" for file in read for line in unsafe(file.read_text(), file.name)]
    assert not found, "start Python by llmk.kernel.interpreter.PYTHON"


def test_ranks_start_without_the_working_directory() -> None:
    """The arguments that launchers are given are safe."""
    from llmk.engine.processes.ranks.launching import ARGUMENTS

    assert ARGUMENTS[0] == "-P"


def test_other_command_lines_are_found() -> None:
    for line in (
        "[sys.executable, *arguments]",
        "(sys.executable, '-m', 'llmk')",
        "[sys.executable]",
        "run(sys.executable, '-P')",
        "from sys import executable",
    ):
        assert list(unsafe(line, "other.py")) == [1], line
    assert not list(unsafe("[sys.executable, '-P', '-m', 'llmk']\n[*PYTHON, *arguments]", "other.py"))
