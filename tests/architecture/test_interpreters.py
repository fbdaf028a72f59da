"""Python processes are started without the working directory, which may be a downloaded checkpoint, on the path."""

from __future__ import annotations

import ast
from pathlib import Path

from size_report import source_folders

ROOT = Path(__file__).resolve().parents[2]


def safe(command: ast.List | ast.Tuple) -> bool:
    """Whether a command line has ``-P`` behind the interpreter, or arguments that the core gives, which start so."""
    second = command.elts[1]
    return (isinstance(second, ast.Constant) and second.value == "-P") or isinstance(second, ast.Starred)


def test_python_is_started_without_the_working_directory() -> None:
    """``sys.executable`` begins such a command line and is used for nothing else."""
    others = []
    for file in (file for folder in source_folders(ROOT) for file in folder.rglob("*.py")):
        if "templates" in file.parts or file.name == "interpreter.py":
            continue
        nodes = list(ast.walk(ast.parse(file.read_text())))
        commands = [node for node in nodes if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1]
        started = {id(command.elts[0]) for command in commands if safe(command)}
        found = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "executable"]
        others += [f"{file.relative_to(ROOT)}:{node.lineno}" for node in found if id(node) not in started]
    assert not others
