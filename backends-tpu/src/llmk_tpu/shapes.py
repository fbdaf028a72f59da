"""The static shapes of steps. A program is compiled for each, and a step is padded to the smallest that holds it.
Needs no JAX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TILE = 32
"""Tokens of one request that attend to the cache together, in steps with prompts."""
_FEWEST_TOKENS = 64
_FEW_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A step of at most so many tokens and requests. Tokens of a request are cut into tiles of at most ``tile``
    tokens."""

    tokens: int
    requests: int
    tile: int

    @property
    def tiles(self) -> int:
        """The most tiles that such a step has: each request may leave one partly filled."""
        return self.requests if self.tile == 1 else self.tokens // self.tile + self.requests

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether a step whose requests compute ``counts`` tokens fits."""
        fits = len(counts) <= self.requests and sum(counts) <= self.tokens
        return fits and (self.tile > 1 or max(counts) == 1)


def shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[Shape]:
    """All shapes: those of steps in which every request computes one token, then those with prompts; small ones
    first."""
    few = min(_FEW_REQUESTS, max_num_seqs)  # fewer would take as long: a TPU's registers have 8 rows
    decoding = [Shape(count, count, 1) for count in _doubling(few, max_num_seqs)]
    requests = sorted({few, max_num_seqs})
    most = -(-max_num_batched_tokens // TILE) * TILE
    with_prompts = [
        Shape(tokens, count, TILE) for tokens in _doubling(min(_FEWEST_TOKENS, most), most) for count in requests
    ]
    return decoding + with_prompts


def shape_for(known: Sequence[Shape], counts: Sequence[int]) -> Shape:
    """The smallest of ``known`` that holds a step whose requests compute ``counts`` tokens."""
    return next(shape for shape in known if shape.holds(counts))


def _doubling(first: int, last: int) -> Iterator[int]:
    while first < last:
        yield first
        first *= 2
    yield last
