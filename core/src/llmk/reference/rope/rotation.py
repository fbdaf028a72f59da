"""Rotary position embedding (arXiv:2104.09864): the rotation itself, and the table of cosines and sines that it
reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from llmk.reference.rope.scaling import inverse_frequencies


class RopeOptions(TypedDict, total=False):
    """``axes``: positions of several axes, such as time, height and width (M-RoPE: Qwen2-VL, arXiv:2409.12191), int64
    ``[rot / 2]``, the axis of each pair (:func:`axes_of_pairs`); ``positions`` are then ``[tokens, axes]``.
    ``neighbours``: whether element ``2 * i`` is paired with ``2 * i + 1``, as in the RoPE paper (GPT-J, GLM)."""

    axes: Tensor
    neighbours: bool


def rope(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, **options: Unpack[RopeOptions]
) -> tuple[Tensor, Tensor]:
    """Rotates the first ``rot`` elements of every head by its token's angles, element ``i`` paired with ``i + rot /
    2``, or with its neighbour.

    Args:
        q: ``[tokens, heads, head_dim]``.
        k: ``[tokens, kv_heads, head_dim]``.
        positions: int64 ``[tokens]``, or ``[tokens, axes]`` with ``axes``.
        cos_sin: float32 ``[max_position, rot]``, each row ``rot / 2`` cosines and as many sines; ``rot <= head_dim``.
        options: see :class:`RopeOptions`.

    Returns:
        New tensors like ``q`` and ``k``; the arithmetic is float32, rounded once.
    """
    turn = _neighbours if options.get("neighbours") else _halves
    return _rotate(q, k, positions, cos_sin, turn, options.get("axes"))


def rope_interleaved(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, **options: Unpack[RopeOptions]
) -> tuple[Tensor, Tensor]:
    """:func:`rope` that pairs element ``2 * i`` with ``2 * i + 1``, as in the RoPE paper and in DeepSeek."""
    return _rotate(q, k, positions, cos_sin, _neighbours, options.get("axes"))


def axes_of_pairs(sections: Sequence[int], *, interleaved: bool = False) -> Tensor:
    """The axis of each rotated pair, int64 ``[sum(sections)]``, if ``sections[i]`` pairs rotate by axis ``i``.

    The pairs of an axis are consecutive (Qwen2-VL). If ``interleaved``, the axes take turns, pair by pair, for as long
    as each has pairs left, and what remains belongs to the first axis (Qwen3-VL).
    """
    axes = torch.repeat_interleave(torch.arange(len(sections)), torch.tensor(sections))
    if interleaved:
        axes = torch.zeros_like(axes)
        for axis, pairs in enumerate(sections[1:], start=1):
            axes[axis : pairs * len(sections) : len(sections)] = axis
    return axes


def cos_sin_cache(
    rope_parameters: Mapping[str, Any],
    head_dim: int,
    max_position: int,
    base: float,
    *,
    trained_positions: int | None = None,
    rows: range | None = None,
) -> Tensor:
    """The table that :func:`rope` reads, for positions up to ``max_position - 1``; it includes the attention scaling.

    Args:
        rows: the positions of which the rows are wanted; ``None``: all. The other arguments and the errors are those of
            :func:`~llmk.reference.rope.scaling.inverse_frequencies`.

    Returns:
        float32 ``[rows, rot]`` on torch's default device.
    """
    rows = range(max_position) if rows is None else rows
    frequencies, scaling = inverse_frequencies(
        rope_parameters, head_dim, max_position, base, trained_positions=trained_positions
    )
    angles = torch.outer(torch.arange(rows.start, rows.stop, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling


def _rotate(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    turn: Callable[[Tensor, Tensor, Tensor], Tensor],
    axes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    rot = cos_sin.shape[1]
    angles = cos_sin[positions]
    if axes is not None:
        angles = angles.gather(1, axes.repeat(2).expand(len(positions), 1, -1)).squeeze(1)
    cos, sin = angles.unsqueeze(1).chunk(2, dim=-1)
    heads = torch.cat((q, k), dim=1)
    rotated = turn(heads[..., :rot].float(), cos, sin).to(heads.dtype)
    if rot < heads.shape[-1]:
        rotated = torch.cat((rotated, heads[..., rot:]), dim=-1)
    new_q, new_k = torch.split(rotated, [q.shape[1], k.shape[1]], dim=1)
    return new_q, new_k


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
