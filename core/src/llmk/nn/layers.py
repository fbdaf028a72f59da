"""The layers of a pipeline stage, grouped by the kernels that they launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, overload

T = TypeVar("T")

_LAYERS_PER_KIND = 2
"""Layers of each kind that represent all of it. Two, because a model's first layer may launch fewer kernels: it has no
residual yet."""


class Layers(Sequence[T]):
    """Layers in the order in which they run; layers of equal ``kinds`` launch the same kernels."""

    def __init__(self, layers: Sequence[T], kinds: Sequence[Hashable]) -> None:
        self._layers = tuple(layers)
        seen: Counter[Hashable] = Counter()
        few = []
        for layer, kind in zip(layers, kinds, strict=True):
            seen[kind] += 1
            if seen[kind] <= _LAYERS_PER_KIND:
                few.append(layer)
        self._few = tuple(few)
        self._running = self._layers

    @contextmanager
    def few(self) -> Iterator[None]:
        """Within, iterating visits only the layers that represent their kind."""
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
