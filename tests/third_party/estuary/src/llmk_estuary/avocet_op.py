"""``qk_norm_rope_write_kv`` in one pass: queries and keys of some tokens are widened once, into one buffer in which
their norms and rotations are computed in place, and rounded once; the attention backend then stores keys and values.

The reference rounds between the norm, its weight and the rotation, and passes over queries and keys for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

TOKENS = 256
"""Most tokens that are computed at a time: their heads are still in the cache from one part to the next."""


def make_one_pass(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Builds ``qk_norm_rope_write_kv`` from the attention backend's ``attention.write``."""
    write = parts["attention.write"]

    def one_pass(
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        meta: Any,
        *,
        norm_offset: float = 0.0,
        norm_after_rope: bool = False,
        axes: Tensor | None = None,
        neighbours: bool = False,
        **stored: Any,
    ) -> Tensor:
        """Args are those of :func:`llmk.reference.composites.make_qk_norm_rope_write_kv`; ``stored`` are what
        ``attention.write`` gets by name. Nothing but the cache is changed."""
        new_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        new_k = None if k is None else torch.empty(k.shape, dtype=k.dtype, device=k.device)
        heads = q.shape[1]
        total = heads + (0 if k is None else k.shape[1])
        buffer = torch.empty(min(TOKENS, len(q)), total, q.shape[2], dtype=torch.float32, device=q.device)
        for start in range(0, len(q), TOKENS):
            some = slice(start, start + TOKENS)
            wide = buffer[: len(q[some])]
            wide[:, :heads] = q[some]
            normed = [(wide[:, :heads], q_weight)]
            if k is not None:
                wide[:, heads:] = k[some]
                normed.append((wide[:, heads:], k_weight))
            turn = None if cos_sin is None else _angles(cos_sin, positions[some], axes)
            if turn is not None and norm_after_rope:
                _rotate(wide, turn, neighbours)
            for part, weight in normed:
                if weight is not None:
                    _norm(part, weight, eps, norm_offset)
            if turn is not None and not norm_after_rope:
                _rotate(wide, turn, neighbours)
            new_q[some] = wide[:, :heads]
            if new_k is not None:
                new_k[some] = wide[:, heads:]
        if new_k is not None:
            write(new_k, v, cache, meta, **stored)
        return new_q

    return one_pass


def _angles(cos_sin: Tensor, positions: Tensor, axes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of tokens, float32 ``[tokens, 1, rot / 2]``. With ``axes``, ``positions`` are ``[tokens,
    axes]``, and each pair is turned by the position of its axis."""
    half = cos_sin.shape[1] // 2
    if axes is None:
        cos, sin = cos_sin[positions].split(half, dim=-1)
    else:
        own = positions[:, axes]  # [tokens, rot / 2]
        pairs = torch.arange(half, device=cos_sin.device)
        cos, sin = cos_sin[own, pairs], cos_sin[own, pairs + half]
    return cos[:, None].float(), sin[:, None].float()


def _rotate(wide: Tensor, turn: tuple[Tensor, Tensor], neighbours: bool) -> None:
    """Rotates the first ``rot`` elements of each head in place: neighbours as pairs, or the elements of two halves."""
    cos, sin = turn
    rot = 2 * cos.shape[-1]
    first, second = (wide[..., :rot:2], wide[..., 1:rot:2]) if neighbours else wide[..., :rot].chunk(2, dim=-1)
    turned = first * cos - second * sin
    second.copy_(second * cos + first * sin)
    first.copy_(turned)


def _norm(heads: Tensor, weight: Tensor, eps: float, offset: float) -> None:
    """Norms each head in place, ``[tokens, heads, head_dim]``."""
    heads.mul_(torch.rsqrt(heads.square().mean(dim=-1, keepdim=True) + eps))
    heads.mul_(weight.float() + offset)
