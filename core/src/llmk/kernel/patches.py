"""Finds what a plugin put in the place of llmk's own functions: extending is by hooks, and what is replaced behind
everybody's back (``ApiKeys.__call__``) could not be told from what llmk says it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any


def replaced(module: str) -> list[str]:
    """Names of llmk that lead to functions of the package that ``module`` is in."""
    package = module.partition(".")[0]
    if package == "llmk":
        return []
    found = []
    for name, own in list(sys.modules.items()):
        if name.partition(".")[0] == "llmk":
            found += [f"{name}.{path}" for path, function in _functions(vars(own), name) if _is_of(function, package)]
    return sorted(found)


def _functions(names: Mapping[str, Any], module: str) -> Iterator[tuple[str, FunctionType]]:
    """Functions at the top of a module, and those of the classes that it defines."""
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == module:
            yield from ((f"{name}.{inner}", function) for inner, function in _functions(vars(value), ""))
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        if isinstance(value, FunctionType):
            yield name, value


def _is_of(function: FunctionType, package: str) -> bool:
    """By where it was written: what a decorator copies onto it says nothing."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0] == package
