"""The tables of the architecture page: packages, by the first sentence of their docstrings, and import contracts."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import partial
from typing import Any

from docstrings import prose
from generated import ROOT, Maker, Page, table

SOURCE = ROOT / "core/src/llmk"


def pages() -> Iterator[Page]:
    """The page of the architecture."""
    blocks: dict[str, Maker] = {
        "core": partial(_packages, "core"),
        "engine": partial(_packages, "engine"),
        "serve": partial(_packages, "serve"),
        "rules": rules,
    }
    yield Page("docs/architecture.md", {f"package_tables.py {name}": maker for name, maker in blocks.items()})


def contracts() -> list[dict[str, Any]]:
    """The import contracts of the workspace."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return found


def rules() -> str:
    """Every import contract, by its name."""
    return "\n".join(f"- {contract['name']}." for contract in contracts())


def _packages(layers: str) -> str:
    """What the layers contract of that name orders, from the highest: packages, and modules that stand alone."""
    (contract,) = (each for each in contracts() if each["id"] == ("floors" if layers == "core" else layers))
    folder = SOURCE if layers == "core" else SOURCE / layers
    above = "llmk" if layers == "core" else f"llmk.{layers}"
    rows = []
    for position, layer in enumerate(contract["layers"]):
        for name in map(str.strip, layer.split("|")):
            package = (folder / name).is_dir()
            file = folder / name / "__init__.py" if package else folder / f"{name}.py"
            rows.append((len(contract["layers"]) - position, f"`{above}.{name}`", _sentence(file.read_text())))
    return table(("level", "package or module", "description"), rows)


def _sentence(source: str) -> str:
    """The first sentence of a module's docstring. Raises ValueError where it has none."""
    text = prose(ast.get_docstring(ast.parse(source)))
    if not text:
        raise ValueError("a package without a docstring: one sentence says what it is")
    return re.split(r"(?<=\.)\s|\n\n", text, maxsplit=1)[0].replace("\n", " ")
