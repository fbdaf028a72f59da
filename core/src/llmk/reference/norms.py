"""Norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

AddNorm = Callable[..., tuple[Tensor, Tensor]]


class SumOptions(TypedDict, total=False):
    """What an op that adds the residual gets by name, where the site's facts have it: ``residual_multiplier``, the
    factor of ``x`` in the sum (Granite)."""

    residual_multiplier: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (arXiv:1910.07467), in float32; ``weight`` multiplies in ``x``'s
    dtype.

    Args:
        x: ``[..., H]``.
        weight: ``[H]``.

    Returns:
        ``[..., H]`` in ``x``'s dtype. Batch-invariant: a row's result is bit-identical in any batch.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def rms_norm_plus_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """:func:`rms_norm` whose checkpoint stores ``weight - 1`` (Gemma), multiplied in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + weight.float())).to(x.dtype)


def make_add_rms_norm(parts: Mapping[str, Callable[..., Tensor]]) -> AddNorm:
    """Builds ``add_rms_norm`` from the part ``rms_norm``."""
    return _make_add_norm(parts["rms_norm"])


def make_add_rms_norm_plus_one(parts: Mapping[str, Callable[..., Tensor]]) -> AddNorm:
    """Builds ``add_rms_norm_plus_one``, which is ``add_rms_norm`` with the norm of the part ``rms_norm_plus_one``."""
    return _make_add_norm(parts["rms_norm_plus_one"])


def make_rms_norm_add(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[[Tensor, Tensor, Tensor, float], Tensor]:
    """Builds ``rms_norm_add`` from the part ``rms_norm``."""
    norm = parts["rms_norm"]

    def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``residual + norm(x)``, ``[..., H]`` in ``x``'s dtype: the norm after a block whose input is not normed (OLMo
        2, arXiv:2501.00656). Nothing is changed in place."""
        return residual + norm(x, weight, eps)

    return rms_norm_add


def make_add_rms_norm_fp32_residual(
    parts: Mapping[str, Callable[..., Tensor]],
) -> Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Builds ``add_rms_norm_fp32_residual`` from the part ``rms_norm``."""
    norm = parts["rms_norm"]

    def add_rms_norm_fp32_residual(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``(normed, sum)``, both ``[..., H]``: ``sum = x + residual`` in float32, and the norm of the sum after it is
        rounded to ``x``'s dtype. ``residual`` is float32, or in ``x``'s dtype before the first block. Nothing is
        changed in place."""
        total = x.float() + residual
        return norm(total.to(x.dtype), weight, eps), total

    return add_rms_norm_fp32_residual


def make_sandwich_norm_plus_one(
    parts: Mapping[str, Callable[..., Any]],
) -> Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Builds ``sandwich_norm_plus_one`` from the parts ``rms_norm_plus_one`` and ``add_rms_norm_plus_one``."""
    norm, add_norm = parts["rms_norm_plus_one"], parts["add_rms_norm_plus_one"]

    def sandwich_norm_plus_one(
        x: Tensor, residual: Tensor, post_weight: Tensor, pre_weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The norms between two blocks if a block's input and output are both normed (Gemma 2, arXiv:2408.00118).

        Norms ``x``, the block's output, by ``post_weight``, adds ``residual``, and norms the sum by ``pre_weight`` for
        the next block: ``(normed, sum)``, both ``[..., H]`` in ``x``'s dtype. Weights are ``[H]``. Nothing is changed
        in place.
        """
        normed: tuple[Tensor, Tensor] = add_norm(norm(x, post_weight, eps), residual, pre_weight, eps)
        return normed

    return sandwich_norm_plus_one


def _make_add_norm(norm: Callable[..., Tensor]) -> AddNorm:
    def add_rms_norm(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, **options: Unpack[SumOptions]
    ) -> tuple[Tensor, Tensor]:
        """``(normed, sum)`` with ``sum = x + residual``, both ``[..., H]`` in ``x``'s dtype; ``options`` may have a
        factor of ``x``. Nothing is changed in place."""
        if options:
            x = x * options["residual_multiplier"]
        total = x + residual
        return norm(total, weight, eps), total

    return add_rms_norm
