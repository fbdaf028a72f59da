"""No plugin assigns onto a name of the core: what a plugin changes, it changes through a hook."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from size_report import source_folders

MUTATORS = frozenset({"setattr", "delattr"})


def core_names(tree: ast.AST) -> set[str]:
    """Local names that imports from ``llmk`` bind in a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "llmk":
                    names.add(alias.asname or "llmk")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "llmk" and not node.level:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or call assigns to, or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MUTATORS and node.args:
        yield ast.Attribute(node.args[0], "*", ast.Store())


def base(target: ast.expr) -> str | None:
    """The name at the root of an attribute or item; ``None`` where the target is a plain name."""
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return None
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def assignments(source: str) -> list[int]:
    """Lines of ``source`` that assign onto what it imported from the core."""
    tree = ast.parse(source)
    names = core_names(tree)
    return [getattr(node, "lineno", 0) for node in ast.walk(tree) for target in targets(node) if base(target) in names]


def test_plugins_leave_core_names_alone(root: Path) -> None:
    plugins = [folder for folder in source_folders(root) if folder.name != "llmk"]
    assert {"llmk_models", "llmk_cpu", "llmk_cuda", "llmk_embeddings", "llmk_parsers", "llmk_policies"} <= {
        folder.name for folder in plugins
    }
    places = [
        f"{file.relative_to(root)}:{line}"
        for folder in plugins
        for file in sorted(folder.rglob("*.py"))
        for line in assignments(file.read_text())
    ]
    assert not places, "assigns onto a name of the core; use a hook instead:\n" + "\n".join(places)


@pytest.mark.parametrize(
    "source",
    [
        "import llmk.nn\nllmk.nn.Linear = object",
        "import llmk.nn as nn\nnn.Linear.forward = lambda self: None",
        "from llmk.api import Tier\nsetattr(Tier, 'VENDOR', 9)",
        "from llmk.nn import build\nbuild.TABLE['x'] = 1",
        "from llmk.nn import build\nbuild.limit += 1",
        "from llmk.nn import build\ndel build.limit",
        "from llmk.nn import build\nx, build.limit = 1, 2",
    ],
)
def test_the_scan_sees(source: str) -> None:
    assert assignments(source)


@pytest.mark.parametrize(
    "source",
    [
        "from llmk.nn import Linear\nclass Mine(Linear):\n    def __init__(self):\n        self.x = 1",
        "from llmk.api import Tier\ntier = Tier.VENDOR",
        "import torch\ntorch.backends.fancy = True",
    ],
)
def test_the_scan_lets_pass(source: str) -> None:
    assert not assignments(source)
