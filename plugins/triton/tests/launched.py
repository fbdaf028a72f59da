"""Which kernels of Triton a function or class of this package launches, by what it names."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = "llmk_triton"


def kernels_of(start: Any) -> set[str]:
    """Names of the kernels that ``start``, or what it calls in this package, names in any branch."""
    kernels: set[str] = set()
    seen: set[int] = set()
    pending = [start]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        name = getattr(value, "__name__", "")
        if name.endswith("_kernel") and not isinstance(value, FunctionType):
            kernels.add(name)
        elif isinstance(value, type):
            members = [member for base in value.__mro__ if _is_own(base) for member in vars(base).values()]
            pending += [getattr(member, "__func__", getattr(member, "fget", member)) for member in members]
        elif isinstance(value, FunctionType) and _is_own(value):
            pending += _named(value)
    return kernels


def _is_own(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(_PACKAGE)


def _named(function: FunctionType) -> Iterator[Any]:
    """What a function's code names: globals, and attributes of this package's modules."""
    inner = getattr(function, "__wrapped__", function)
    names = set(_names(inner.__code__))
    for name in names & inner.__globals__.keys():
        value = inner.__globals__[name]
        if isinstance(value, ModuleType) and value.__name__.startswith(_PACKAGE):
            yield from (getattr(value, each) for each in names if hasattr(value, each))
        else:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
