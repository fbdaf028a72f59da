"""Finds functions of llmk that a plugin replaced (monkey-patched). Plugins extend llmk through hooks only; with a
replaced function (``ApiKeys.__call__``), llmk would no longer do what it reports."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

_WRAPPERS = (classmethod, staticmethod, MethodType)


def replaced(module: str) -> list[str]:
    """Names in llmk's modules and classes that refer to functions of ``module``'s package."""
    return replaced_by_package().get(_package(module), [])


def replaced_by_package() -> dict[str, list[str]]:
    """Names in llmk's modules and classes that refer to functions of other packages, by package, each list sorted."""
    found = defaultdict[str, list[str]](list)
    for name, own in list(sys.modules.items()):
        if _package(name) == "llmk":
            for path, function in _functions(vars(own), name):
                # Decorators copy names and other attributes, but not the globals.
                if (package := _package(str(function.__globals__.get("__name__", "")))) != "llmk":
                    found[package].append(f"{name}.{path}")
    return {package: sorted(names) for package, names in found.items()}


def _functions(names: Mapping[str, Any], module: str) -> Iterator[tuple[str, FunctionType]]:
    """Top-level functions of a module that it does not define itself, and methods of the classes that it defines."""
    for name, value in list(names.items()):
        if isinstance(value, type):
            if value.__module__ == module:
                yield from ((f"{name}.{inner}", function) for inner, function in _functions(vars(value), ""))
            continue
        if isinstance(value, _WRAPPERS):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType) and value.__globals__ is not names:
            yield name, value


def _package(module: str) -> str:
    return module.partition(".")[0]
