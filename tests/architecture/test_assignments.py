"""No plugin assigns onto a name of the core: what a plugin changes, it changes through a hook."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from size_report import STRANGER, source_folders

SETTERS = frozenset({"setattr", "delattr", "setitem", "delitem", "__setattr__", "__delattr__", "patch"})
CHANGERS = frozenset(
    {
        "update",
        "setdefault",
        "append",
        "extend",
        "insert",
        "pop",
        "popitem",
        "clear",
        "remove",
        "discard",
        "__setitem__",
    }
)
READERS = frozenset({"vars", "getattr", "import_module", "__import__", "reload"})
"""Functions whose result is, or leads to, what their first argument names."""


class Core:
    """What in a module leads into the core: names that it imported, other names of these, and modules found by name."""

    def __init__(self, tree: ast.AST) -> None:
        self.names: set[str] = set()
        aliases = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.names |= {alias.asname or "llmk" for alias in node.names if is_core(alias.name)}
            elif isinstance(node, ast.ImportFrom) and is_core(node.module) and not node.level:
                self.names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) and node.value:
                aliases.append((targets(node), node.value))
        before = -1
        while before != len(self.names):
            before = len(self.names)
            for found, value in aliases:
                if self.leads(value):
                    self.names |= {target.id for target in found if isinstance(target, ast.Name)}

    def leads(self, node: ast.AST) -> bool:
        """Whether an expression is the core's, or a part of what is."""
        match node:
            case ast.Name():
                return node.id in self.names
            case ast.Subscript(value=ast.Attribute(attr="modules") | ast.Name(id="modules")):
                return names_core(node.slice)
            case ast.Attribute() | ast.Subscript():
                return self.leads(node.value)
            case ast.Call(args=[first, *_]) if called(node) in READERS:
                return self.leads(first) or names_core(first)
        return False

    def changed_by(self, node: ast.AST) -> bool:
        """Whether a statement or call changes what is the core's."""
        if any(not isinstance(target, ast.Name) and self.leads(target) for target in targets(node)):
            return True
        if not isinstance(node, ast.Call):
            return False
        first = node.args[0] if node.args else node
        if called(node) in SETTERS or ast.unparse(node.func).endswith(("patch.object", "patch.dict")):
            return self.leads(first) or names_core(first)
        if called(node) not in CHANGERS or not isinstance(node.func, ast.Attribute):
            return False
        return self.leads(node.func.value) or (ast.unparse(node.func.value) == "sys.modules" and names_core(first))


def is_core(module: str | None) -> bool:
    """Whether a dotted name begins in ``llmk``."""
    return (module or "").partition(".")[0] == "llmk"


def names_core(node: ast.AST) -> bool:
    """Whether ``node`` is a text that :func:`is_core`."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and is_core(node.value)


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return ast.unparse(call.func).rpartition(".")[2]


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement or expression binds, assigns to or deletes."""
    match node:
        case ast.Assign() | ast.Delete():
            found = node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.NamedExpr() | ast.For() | ast.AsyncFor() | ast.comprehension():
            found = [node.target]
        case ast.withitem(optional_vars=ast.expr() as target):
            found = [target]
        case _:
            found = []
    return [leaf for target in found for leaf in leaves(target)]


def leaves(target: ast.expr) -> Iterator[ast.expr]:
    """The targets in a tuple or list of such."""
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from leaves(element)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def assignments(source: str) -> list[int]:
    """Lines of ``source`` that assign onto what is the core's."""
    tree = ast.parse(source)
    core = Core(tree)
    return [getattr(node, "lineno", 0) for node in ast.walk(tree) if core.changed_by(node)]


def test_plugins_leave_core_names_alone(root: Path) -> None:
    packages = [folder for folder in source_folders(root) if folder.name != "llmk"]
    packages += [root / STRANGER / "llmk_nova", root / "plugins/testing/src/llmk_testing/templates"]
    assert {"llmk_models", "llmk_cpu", "llmk_cuda", "llmk_embeddings", "llmk_nova", "templates"} <= {
        folder.name for folder in packages if any(folder.rglob("*.py"))
    }
    places = [
        f"{file.relative_to(root)}:{line}"
        for folder in packages
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
        "from llmk.api import Tier\nimport builtins\nbuiltins.setattr(Tier, 'VENDOR', 9)",
        "from llmk.api import Tier\ntype.__setattr__(Tier, 'VENDOR', 9)",
        "from llmk.nn import build\nbuild.TABLE['x'] = 1",
        "from llmk.nn.build import TABLE\nTABLE['x'] = 1",
        "from llmk.nn.build import TABLE\nTABLE.update(x=1)",
        "from llmk.nn import build\nbuild.ORDER.append(1)",
        "from llmk.nn import build\nbuild.limit += 1",
        "from llmk.nn import build\nbuild.limit: int = 1",
        "from llmk.nn import build\ndel build.limit",
        "from llmk.nn import build\nx, (y, build.limit) = 1, (2, 3)",
        "from llmk.nn import build\nfor build.limit in range(3): pass",
        "from llmk.nn import build\nwith open('x') as build.file: pass",
        "from llmk.nn import build\nother = build\nother.limit = 1",
        "from llmk.nn import build\ntable = build.TABLE\nalso = table\nalso['x'] = 1",
        "from llmk.nn import build\nvars(build)['limit'] = 1",
        "from llmk.nn import build\nbuild.__dict__.update(limit=1)",
        "from llmk.nn import build\ngetattr(build, 'Linear').forward = None",
        "import sys\nsys.modules['llmk.nn.build'] = object()",
        "import sys\nsys.modules['llmk.nn.build'].limit = 1",
        "import sys\nsys.modules.pop('llmk.nn.build')",
        "from sys import modules\ndel modules['llmk.nn']",
        "from importlib import import_module\nimport_module('llmk.nn').Linear = None",
        "import importlib\nnn = importlib.import_module('llmk.nn')\nnn.Linear = None",
        "from unittest.mock import patch\npatch('llmk.nn.Linear', None).start()",
        "from unittest import mock\nfrom llmk import nn\nmock.patch.object(nn, 'Linear', None).start()",
        "def change():\n    import llmk.nn\n    llmk.nn.Linear = None",
    ],
)
def test_the_scan_sees(source: str) -> None:
    assert assignments(source)


@pytest.mark.parametrize(
    "source",
    [
        "from llmk.nn import Linear\nclass Mine(Linear):\n    def __init__(self):\n        self.x = 1",
        "from llmk.nn import Linear\nlayer = Linear(1, 2)\nlayer.x = 1",
        "from llmk.api import Tier\ntier = Tier.VENDOR\ntier = Tier.NATIVE",
        "import torch\ntorch.backends.fancy = True",
        "import sys\nsys.modules['llmk_acme.own'] = object()",
        "import llmk_acme\nllmk_acme.limit = 1",
        "found = []\nfound.append(1)\nfound[0] = 2",
    ],
)
def test_the_scan_lets_pass(source: str) -> None:
    assert not assignments(source)
