"""Finds functions of llmk that a plugin replaced (monkey-patched). Plugins extend llmk through hooks only; with a
replaced function (``ApiKeys.__call__``), llmk would no longer do what it reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any


def replaced(module: str) -> list[str]:
    """Names in llmk's modules and classes that refer to functions of ``module``'s package."""
    package = module.partition(".")[0]
    if package == "llmk":
        return []
    found = []
    for name, own in list(sys.modules.items()):
        if name.partition(".")[0] == "llmk":
            found += [f"{name}.{path}" for path, function in _functions(vars(own), name) if _is_of(function, package)]
    return sorted(found)


def _functions(names: Mapping[str, Any], module: str) -> Iterator[tuple[str, FunctionType]]:
    """Top-level functions of a module, and methods of the classes that it defines."""
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == module:
            yield from ((f"{name}.{inner}", function) for inner, function in _functions(vars(value), ""))
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        if isinstance(value, FunctionType):
            yield name, value


def _is_of(function: FunctionType, package: str) -> bool:
    """Decided by the function's globals, since decorators copy names and other attributes."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0] == package
