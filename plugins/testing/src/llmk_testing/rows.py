"""Token counts with which kernels are tested."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import TokenBand

_COUNTS = (1, 2, 3, 8, 17, 33, 64, 65, 130, 300)
_MORE = (4, 5, 7, 9, 15, 16, 31, 32, 63, 127, 128, 129, 255, 257, 513, 1025)
_FEW = (1, 5, 33)
_EVERY = (*range(1, 34), *(place + near for place in (48, 64, 96, 128, 256, 512) for near in (-1, 0, 1)))
"""All small numbers, and those around the edges of larger tiles."""


def counts(bands: Sequence[TokenBand], *, few: bool = False, thorough: bool = False) -> list[int]:
    """For each band: its first counts, its last if that is small, and counts around the edges of tiles."""
    found: set[int] = set()
    for band in bands:
        usual = _FEW if few else (*_COUNTS, *_MORE) if thorough else _COUNTS
        edges = (band.start,) if few else (band.start, band.start + 1, band.stop - 1)
        most = max(_MORE[-1] if thorough else _COUNTS[-1], band.start + 1)
        found |= {count for count in (*usual, *edges) if band.start <= count < band.stop and count <= most}
    return sorted(found)


def each_number(bands: Sequence[TokenBand]) -> list[int]:
    """Every number of rows that kernels have code of its own for, of those in the bands."""
    return [count for count in _EVERY if any(band.start <= count < band.stop for band in bands)]


def none_or_more(bands: Sequence[TokenBand]) -> list[int]:
    """The same, and none, which goes where one row does."""
    return [0, *each_number(bands)] if any(band.start <= 1 for band in bands) else each_number(bands)
