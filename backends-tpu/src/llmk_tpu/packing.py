"""Everything that the host says of a step, as one array: a single transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from llmk_tpu.shapes import Shape

Ints = npt.NDArray[np.int32]

_FLOATS = ("temperature", "top_p", "min_p")


def sizes(shape: Shape) -> dict[str, int]:
    """The arrays of a step, in their order, and how long each is.

    By token: ``token_ids`` (-1: the last token that was sampled for its slot), ``positions``, ``rows`` (its request),
    ``place`` (:class:`llmk_tpu.paged.Tiles`). By request: ``slots``; ``sampled_at``, the token whose logits are
    sampled; ``sampled_slots``, where the sampled token is kept (out of range: nowhere); and
    :class:`llmk_tpu.sampling.Controls`.
    By tile: ``row``, ``start``, ``size``.
    """
    by_token = dict.fromkeys(("token_ids", "positions", "rows", "place"), shape.tokens)
    by_request = ("slots", "sampled_at", "sampled_slots", *_FLOATS, "top_k", "high", "low")
    by_tile = dict.fromkeys(("row", "start", "size"), shape.tiles)
    return by_token | dict.fromkeys(by_request, shape.requests) | by_tile


def pack(shape: Shape, arrays: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """All arrays in one, int32; floats by their bits."""
    parts = (
        arrays[name].astype(np.float32).view(np.int32) if name in _FLOATS else arrays[name] for name in sizes(shape)
    )
    return np.concatenate([part.astype(np.int32, copy=False) for part in parts])


def unpack(shape: Shape, packed: Array) -> dict[str, Array]:
    """The arrays again, in a program."""
    found, start = {}, 0
    for name, size in sizes(shape).items():
        part = packed[start : start + size]
        found[name] = lax.bitcast_convert_type(part, jnp.float32) if name in _FLOATS else part
        start += size
    return found
