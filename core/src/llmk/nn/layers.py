"""The layers of a stage, and what tells those apart that launch different kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, overload

T = TypeVar("T")

_ALIKE = 2
"""Layers of each kind that stand for all: the first may lack what is handed from layer to layer."""


class Layers(Sequence[T]):
    """Layers in the order in which they run; those of equal ``kinds`` launch the same kernels."""

    def __init__(self, layers: Sequence[T], kinds: Sequence[Hashable]) -> None:
        self._layers = tuple(layers)
        seen: Counter[Hashable] = Counter()
        few = []
        for layer, kind in zip(layers, kinds, strict=True):
            seen[kind] += 1
            if seen[kind] <= _ALIKE:
                few.append(layer)
        self._few = tuple(few)
        self._running = self._layers

    @contextmanager
    def few(self) -> Iterator[None]:
        """Who iterates within gets but those that stand for all."""
        self._running = self._few
        try:
            yield
        finally:
            self._running = self._layers

    def __iter__(self) -> Iterator[T]:
        return iter(self._running)

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._layers[index]
