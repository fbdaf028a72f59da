"""Signatures and docstrings, read from the source without importing it, as Markdown."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ROLE = re.compile(r":\w+:`~?([^`]*)`")
_SECTION = re.compile(r"(?:^|(?<=\n\n))(Attributes|Args|Returns|Raises|Yields):\n", re.M)
_ENTRY = re.compile(r"^    (?=\S)", re.M)


@dataclass(frozen=True, slots=True)
class Documented:
    """A class, a function or a member of a class: how it is written, its docstring in Markdown, and its members."""

    name: str
    signature: str
    text: str
    members: tuple[Documented, ...] = ()

    @property
    def sentence(self) -> str:
        """The first sentence of its docstring."""
        return re.split(r"(?<=\.)\s|\n\n", self.text, maxsplit=1)[0].replace("\n", " ")


@cache
def document(location: str) -> Documented:
    """What stands at ``"module:name"``: a class, a function or an alias of a type. Raises LookupError where nothing
    does."""
    module, _, name = location.partition(":")
    body = parse(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Documented(name, f"class {name}", prose(ast.get_docstring(node)), tuple(_members(node)))
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return Documented(name, _signature(node), prose(ast.get_docstring(node)))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and not name.isupper():
            return Documented(name, ast.unparse(node), prose(_told(after)))
    raise LookupError(f"nothing stands at {location}")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: its roles and double backticks as code, its sections as lists."""
    text = _ROLE.sub(lambda found: f"`{found[1].split('.')[-1]}`", inspect.cleandoc(docstring or ""))
    text = text.replace("``", "`")
    first, *rest = _SECTION.split(text)
    parts = [first.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        inside, *after = re.split(r"\n\n(?=\S)", body, maxsplit=1)
        parts += [f"{title}:", _entries(inside), *after]
    return "\n\n".join(part for part in parts if part)


def _entries(text: str) -> str:
    """The indented entries of a section, as a list."""
    found = [re.sub(r"\s*\n\s*", " ", entry).strip() for entry in _ENTRY.split(text)]
    return "\n".join("- " + re.sub(r"^([\w, ]+):", r"`\1`:", entry) for entry in found if entry)


def _members(node: ast.ClassDef) -> Iterator[Documented]:
    """Public fields, each with the docstring behind it, public methods, and how it is made and called."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if not item.target.id.startswith("_"):
                yield Documented(item.target.id, ast.unparse(item), prose(_told(after)))
        elif isinstance(item, ast.Assign) and not ast.unparse(item).startswith("_"):
            yield Documented(ast.unparse(item.targets[0]), ast.unparse(item), "")
        elif isinstance(item, ast.FunctionDef) and (
            not item.name.startswith("_") or item.name in ("__init__", "__call__")
        ):
            yield Documented(item.name, _signature(item), prose(ast.get_docstring(item)))


def _told(after: ast.stmt | None) -> str:
    """The docstring behind a field or an alias."""
    told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    return str(after.value.value) if told else ""  # type: ignore[union-attr]


def _signature(node: ast.FunctionDef) -> str:
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args).removeprefix('self, ').removeprefix('self')}){returns}"


@cache
def parse(module: str) -> ast.Module:
    """The source of a module of this repository. Raises LookupError where there is none."""
    found = find_spec(module.split(".")[0])
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, *module.split(".")[1:])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return ast.parse(file.read_text())
    raise LookupError(f"there is no module {module}")


def listed(documented: Documented, level: int) -> str:
    """A class or function with its members, under a heading of ``level``."""
    lines = [f"{'#' * level} `{documented.name}`", ""]
    if not documented.members:
        lines += [f"`{documented.signature}`", ""]
    lines += [documented.text, ""]
    for member in documented.members:
        told = textwrap.indent(member.text, "    ").strip()
        lines.append(f"- `{member.signature}`" + (f"  \n    {told}" if told else ""))
    return "\n".join(lines).strip() + "\n"
