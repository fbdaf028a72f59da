"""Names that signatures on a page use: where each is defined, and so what else the page must explain."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator

from docstrings import Documented, document, parse

_NAME = re.compile(r"\b[A-Z]\w+\b")


def others(locations: Iterable[str], elsewhere: Container[str]) -> list[str]:
    """The definitions in llmk's packages of all names that the signatures at ``locations`` use, but for ``locations``
    themselves; and what these use in turn, but for those that are explained ``elsewhere``."""
    found = dict.fromkeys(locations)
    given, waiting = set(found), list(found)
    while waiting:
        at = waiting.pop(0)
        new = [each for each in _used(at) if each not in found]
        found |= dict.fromkeys(new)
        waiting += [each for each in new if each not in elsewhere and not is_linked(each)]
    return sorted((at for at in found if at not in given), key=lambda at: at.partition(":")[2])


def is_linked(location: str) -> bool:
    """Whether it is explained on the page of a package rather than on those of hooks."""
    return location.startswith(("llmk.nn.", "llmk.tree."))


def _used(location: str) -> Iterator[str]:
    module = location.partition(":")[0]
    for name in dict.fromkeys(_NAME.findall(" ".join(_signatures(document(location))))):
        if at := _definition(module, name):
            yield at


def _signatures(documented: Documented) -> list[str]:
    return [documented.signature, *(member.signature for member in documented.members)]


def _definition(module: str, name: str) -> str:
    """Where a module has a name from; ``""`` for one of other packages, and for constants."""
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            source = node.module or ""
            return _definition(source, name) if source.startswith("llmk") else ""
    try:
        return f"{module}:{document(f'{module}:{name}').name}"
    except LookupError:
        return ""
