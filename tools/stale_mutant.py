"""The mistake of a cache that finds answers again by shapes and lengths alone. Importing it makes it a built-in, which
mutants use as ``stale_mutant``; it imports nothing heavy, as children of a suite need it, too."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any


def stale(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps answers by the shapes and lengths of arguments."""
    kept: dict[Any, Any] = {}

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        key = tuple(map(_shape, args)), tuple((name, _shape(value)) for name, value in sorted(kwargs.items()))
        if key not in kept:
            kept[key] = function(*args, **kwargs)
        return kept[key]

    return cached


def _shape(value: Any) -> Any:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(value.shape), value.dtype
    if value is None or isinstance(value, int | float | str | bool):
        return value
    if hasattr(value, "__len__"):
        return type(value), len(value)
    return type(value) if hasattr(value, "__dataclass_fields__") else id(value)


builtins.stale_mutant = stale  # type: ignore[attr-defined]
