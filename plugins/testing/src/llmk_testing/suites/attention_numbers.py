"""Keys and values unlike those of a normal distribution: large scores, zeros, ties, and what a cache clamps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from llmk.api import AttentionQuery
from llmk.api.cache import SCALED_BITS
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.paged import Paged, Work, decode, history
from llmk_testing.tolerance import Bound

_LOUDER = 30.0
"""How many times its own key a query is: scores of hundreds, of which one is far above all others."""
_BEYOND = 4.0
"""Factor of the largest number of an 8-bit dtype that most elements of a vector are beyond."""

_LOW, _LOW_IN_FLOAT16 = 1e5, 1.5e4
"""Least magnitude of scores that are all far below zero: below the finite numbers that kernels have in place of minus
infinity, and in float16, which a kernel may round scores to, within what it holds."""
OF_LOW = Bound(5e-2, 0.3)
"""Bound of what is computed of them: float32 has two digits behind the point there."""

Given = Callable[..., Paged]
_STEPS: tuple[Work, ...] = (
    history(20, 1, 33),
    decode(20, 1, 33),
    [(0, 21, 30), (1, 2, 3), (2, 34, 36)],
)


def cases(paged: Given) -> dict[str, Callable[..., str | None]]:
    """By name, what holds of a backend and a query."""

    def takes_large_scores(candidate: Candidate[AttentionQuery], asked: Asked[AttentionQuery]) -> str:
        """Whose exponentials are infinite or zero. The first token sees itself alone, by a score far below zero; of
        other requests, all scores are far below zero."""
        one = paged(candidate, asked, requests=3, longest=64)
        one.rows[..., : one.sizes[0]] = _LOUDER * _own_keys(one)
        one.rows[:, 0, : one.sizes[0]] *= -1
        low = paged(candidate, asked, requests=3, longest=64)
        score = go_low(low, (0, 1, 2))
        if low.sinks is not None:
            low.sink(low.sinks + score)
        _played(low, "with scores that are all far below zero", OF_LOW)
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


def _played(one: Paged, what: str, bound: Bound | None = None) -> str:
    outs = [one.play(work) for work in _STEPS]
    return agreeing([one.check(out, work, what, bound) for out, work in zip(outs, _STEPS, strict=True)])


def go_low(one: Paged, requests: Sequence[int]) -> float:
    """Gives requests keys that are one vector by different factors, and queries that point away from it, so that each
    token sees scores far below zero alone, and those of equal keys count alike. Returns the greatest score."""
    query, longest = one.query, one.rows.shape[1]
    signs = 1.0 - 2.0 * (torch.arange(query.head_dim) % 2)
    least = _LOW_IN_FLOAT16 if query.dtype == "float16" else _LOW
    away = 2.0 ** math.floor(math.log2(least / (query.head_dim * query.scale)) + 1)
    factors = 1 + torch.arange(longest) * 7 % 5 / 4 * (1 + (torch.arange(longest) < longest // 2)) / 2
    places, count = one.sizes[0], one.sizes[1] // query.head_dim
    for request in requests:
        one.rows[request, :, :places] = (-away * signs).repeat(query.num_heads)
        one.rows[request, :, places : places + one.sizes[1]] = (factors[:, None] * signs).repeat(1, count)
    return -away * query.head_dim * query.scale


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
