"""Queries for kernels that serve few shapes: combinations of options that they serve, found by asking them.

The suites' own queries are of shapes that most kernels serve. Of a kernel that serves none of them, ``supports`` says
which it does serve.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Serves = Callable[[Mapping[str, Any]], bool]
"""Whether a kernel serves the query with these options."""
Axis = Sequence[Mapping[str, Any]]
"""Choices of which a query has one, the usual one first."""

_GROUPS = (4, 1, 2, 8, 16, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 20, 24, 32, 40, 48, 64, 71, 128)
_HEADS: tuple[Axis, ...] = (
    [{"heads": group} for group in _GROUPS],
    [{"head_dim": size} for size in (64, 128, 256, 32, 16, 80, 96, 112, 192, 512)],
    [{"block_size": size} for size in (16, 64, 32, 128, 8, 256, 4, 1)],
    [{"kv_heads": count} for count in (2, 1, 8)],
    [
        *({}, {"sliding_window": 1024}, {"sliding_window": 128}, {"cache_dtype": "float8_e4m3fn"}),
        *({"cache_dtype": "int8"}, {"cache_dtype": "int4"}, {"softcap": 30.0}, {"sinks": True}),
        *({"sliding_window": 128, "sinks": True}, {"value_dim": 128}),
    ],
)
_LATENT: tuple[Axis, ...] = (
    [{"heads": group} for group in (16, 128, 64, 32, 8, 20)],
    [{"head_dim": 576, "latent_dim": 512}, {"head_dim": 320, "latent_dim": 256}, {"head_dim": 512, "latent_dim": 512}],
    [{"block_size": size} for size in (64, 16, 32, 128, 1)],
    [{"kv_heads": 1}],
    [{}, {"cache_dtype": "float8_e4m3fn"}, {"cache_dtype": "int8"}],
)


def combined(choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One choice of each axis as options; later ones override."""
    return {name: value for choice in choices for name, value in choice.items()}


def first_served(axes: Sequence[Axis], serves: Serves) -> tuple[Mapping[str, Any], ...] | None:
    """The first combination that a kernel serves, as the choice of each axis; the last axis varies fastest."""
    return next((chosen for chosen in itertools.product(*axes) if serves(combined(chosen))), None)


def around(axes: Sequence[Axis], center: Sequence[Mapping[str, Any]], serves: Serves) -> Iterator[dict[str, Any]]:
    """A combination, and those that differ from it in one axis and are served, too."""
    yield combined(center)
    for place, axis in enumerate(axes):
        for choice in axis:
            options = combined([*center[:place], choice, *center[place + 1 :]])
            if choice != center[place] and serves(options):
                yield options


def attention_options(serves: Serves) -> list[dict[str, Any]]:
    """Attention that a kernel serves, with options of an ``AttentionQuery`` and ``shape``: query heads, K/V heads,
    elements of a head, tokens of a block. The first combination, and those around it; none where it serves none."""

    def asked(options: Mapping[str, Any]) -> bool:
        return serves(_shaped(options))

    for axes in (_HEADS, _LATENT):
        if (center := first_served(axes, asked)) is not None:
            return [_shaped(options) for options in around(axes, center, asked)]
    return []


def _shaped(options: Mapping[str, Any]) -> dict[str, Any]:
    """``heads`` are those of a K/V head."""
    named = dict(options)
    group, head_dim, block_size, kv_heads = map(named.pop, ("heads", "head_dim", "block_size", "kv_heads"))
    return {"shape": (group * kv_heads, kv_heads, head_dim, block_size), **named}
