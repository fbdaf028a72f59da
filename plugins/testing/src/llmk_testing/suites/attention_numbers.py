"""Keys and values unlike those of a normal distribution: large scores, zeros, ties, and what a cache clamps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llmk.api import AttentionQuery
from llmk.api.cache import SCALED_BITS
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.paged import Paged, Work, decode, history

_LOUDER = 30.0
"""How many times its own key a query is: scores of hundreds, of which one is far above all others."""
_BEYOND = 4.0
"""Factor of the largest number of an 8-bit dtype that most elements of a vector are beyond."""

Given = Callable[..., Paged]
_STEPS: tuple[Work, ...] = (
    history(20, 1, 33),
    decode(20, 1, 33),
    [(0, 21, 30), (1, 2, 3), (2, 34, 36)],
)


def cases(paged: Given) -> dict[str, Callable[..., str | None]]:
    """By name, what holds of a backend and a query."""

    def takes_large_scores(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Whose exponentials are infinite or zero. The first token sees itself alone, by a score far below zero."""
        one = paged(candidate, asked, requests=3, longest=64)
        one.rows[..., : one.sizes[0]] = _LOUDER * _own_keys(one)
        one.rows[:, 0, : one.sizes[0]] *= -1
        return _played(one, "with scores of hundreds")

    def takes_odd_vectors(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Zeros everywhere; in narrow caches, numbers that are clamped, and ties."""
        one = paged(candidate, asked, requests=3, longest=64)
        stored = one.rows[..., one.sizes[0] :]
        stored[:, 3] = 0.0
        one.rows[:, 4] = 0.0
        if asked.query.cache_dtype.startswith("float8"):
            _go_beyond(stored[:, 7:9], asked.query.cache_dtype)
        if bits := SCALED_BITS.get(asked.query.cache_dtype):
            stored[:, 6] = torch.cat([_ties(width, bits).repeat(count) for count, width in one.shapes[1:]])
        return _played(one, "with vectors of zeros")

    return {"takes scores of hundreds": takes_large_scores, "takes vectors of zeros": takes_odd_vectors}


def _played(one: Paged, what: str) -> str:
    outs = [one.play(work) for work in _STEPS]
    return agreeing([one.check(out, work, what) for out, work in zip(outs, _STEPS, strict=True)])


def _go_beyond(stored: Tensor, cache_dtype: str) -> None:
    """Multiplies vectors so that most elements can't be stored, as far as the engine's dtype has such numbers; what
    they are clamped to is within it, with any scale."""
    largest = torch.finfo(stored.dtype).max / 2
    beyond = _BEYOND * torch.finfo(getattr(torch, cache_dtype)).max
    stored.copy_((stored.float() * beyond).clamp(-largest, largest))


def _ties(width: int, bits: int) -> Tensor:
    """A vector whose scale is 1/8, and whose other elements lie between two integers."""
    limit = (1 << (bits - 1)) - 1
    numbers = torch.arange(width) % 6 - 2.5
    numbers[0] = limit
    return numbers / 8


def _own_keys(one: Paged) -> Tensor:
    """Each token's key in place of its queries, by the heads' groups."""
    query = one.query
    keys = one.rows[..., one.sizes[0] : one.sizes[0] + one.sizes[1]].unflatten(-1, one.shapes[1])
    every: Tensor = keys.repeat_interleave(query.num_heads // query.num_kv_heads, dim=2)
    return every.flatten(2)
