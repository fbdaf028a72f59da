"""Tensors in tuples, mappings and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from llmk.api import CacheStep, DraftTails


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``value`` with every tensor in it changed: in tuples, mappings and steps."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (CacheStep, DraftTails)):
        every = {field.name: getattr(value, field.name) for field in fields(value)}
        return type(value)(**{name: mapped(change, one) for name, one in every.items()})
    if isinstance(value, tuple):
        changed = [mapped(change, one) for one in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    return value


def mapped_values(change: Callable[[Tensor], Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments, with every tensor in them changed."""
    return {name: mapped(change, value) for name, value in values.items()}


def tensors(value: Any) -> list[Tensor]:
    """All tensors in ``value``, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(note, value)
    return found
