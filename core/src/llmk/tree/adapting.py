"""A model with room for adapters: a tree of which some linear layers have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from llmk.tree.linear import AdapterRoom, Linear
from llmk.tree.spec import Spec, field_names

S = TypeVar("S", bound=Spec)


def adapted(spec: S, rooms: Mapping[str, AdapterRoom]) -> S:
    """``spec`` with ``rooms`` at its linear layers, by their names (``at``). Parts without any stay the same objects,
    and parts that several specs share stay shared."""
    made: S = _Adapting(rooms).of(spec)
    return made


class _Adapting:
    def __init__(self, rooms: Mapping[str, AdapterRoom]) -> None:
        self._rooms = rooms
        self._made: dict[int, Spec] = {}

    def of(self, value: Any) -> Any:
        """A field's value, or a spec."""
        if isinstance(value, tuple):
            made = tuple(map(self.of, value))
            return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
        if not isinstance(value, Spec):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = self._spec(value)
        return self._made[id(value)]

    def _spec(self, spec: Spec) -> Spec:
        if isinstance(spec, Linear):
            room = self._rooms.get(spec.at)
            return spec if room is None else replace(spec, adapters=room)
        pairs = ((name, getattr(spec, name)) for name in field_names(type(spec)))
        changes = {name: made for name, value in pairs if (made := self.of(value)) is not value}
        return replace(spec, **changes) if changes else spec
