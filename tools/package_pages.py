"""The pages of ``llmk.tree``, ``llmk.nn`` and ``llmk.reference``: what is public in them, as the sources say it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from docstrings import document, listed, prose
from generated import ROOT, Page

from llmk import nn, tree
from llmk_testing.new import Project

SOURCE = ROOT / "core/src/llmk"
FILES = dict(Project("llmk-acme", "model").files())


def pages() -> Iterator[Page]:
    """Theirs, and that of the model that ``llmk plugins new`` writes."""
    yield Page("docs/plugins/nn.md", {"package_pages.py layers": layers})
    yield Page("docs/plugins/tree.md", {"package_pages.py specs of models": vocabulary})
    names = ("specs", "model", "examples")
    yield Page("docs/plugins/add-a-model.md", {f"package_pages.py {name}": partial(example, name) for name in names})
    yield Page("docs/plugins/reference.md", {"package_pages.py": references})


def layers() -> str:
    """Every name of ``llmk.nn``, with its members."""
    return "\n".join(listed(document(f"llmk.nn.{nn._LAZY[name]}:{name}"), 3) for name in nn.__all__)


def vocabulary() -> str:
    """Every name of ``llmk.tree``, with its members."""
    found = {name: getattr(tree, name) for name in tree.__all__}
    places = (f"{each.__module__}:{name}" for name, each in found.items() if hasattr(each, "__module__"))
    return "\n".join(listed(document(place), 3) for place in places if place.startswith("llmk.tree"))


def example(name: str) -> str:
    """A file of the model that ``llmk plugins new --kind model`` writes, which its own tests load, check and serve."""
    place = f"llmk-acme/src/llmk_acme/{name}.py"
    return f"```python\n# {place}\n{FILES[place.removeprefix('llmk-acme/')].strip()}\n```"


def references() -> str:
    """The modules of ``llmk.reference``, each with its public functions and classes."""
    sections = []
    for file in sorted((SOURCE / "reference").rglob("*.py")):
        module = ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts)
        tree = ast.parse(file.read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        entries = [_entry(f"{module}:{name}") for name in names if not name.startswith("_")]
        if entries and file.name != "specs.py":
            sections.append("\n\n".join((f"### `{module}`", prose(ast.get_docstring(tree)), "\n".join(entries))))
    return "\n\n".join(sections)


def _entry(location: str) -> str:
    found = document(location)
    return f"- `{found.signature}`  \n    {found.sentence}"
