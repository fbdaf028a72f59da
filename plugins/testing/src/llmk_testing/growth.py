"""How much memory stays, of what is done again and again: by any object, class or module."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def bytes_kept(act: Callable[[int], object], counts: tuple[int, int]) -> tuple[int, int]:
    """Calls ``act`` with 0, 1, … and returns how many more bytes Python holds after each of ``counts`` calls. Memory of
    tensors is not counted, but the objects are."""
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        gc.collect()
        start = tracemalloc.get_traced_memory()[0]
        few, many = (_held_after(act, range(*ends)) - start for ends in ((0, counts[0]), counts))
    finally:
        if not tracing:
            tracemalloc.stop()
    return few, many


def _held_after(act: Callable[[int], object], numbers: range) -> int:
    for number in numbers:
        act(number)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def little_memory(most: int, what: str) -> Iterator[None]:
    """Raises AssertionError where more than ``most`` bytes are taken at a time; ``what`` takes them."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{what} take {peak:,} bytes of memory, more than {most:,}"
