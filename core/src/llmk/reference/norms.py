"""Norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

AddNorm = Callable[..., tuple[Tensor, Tensor]]


class SumOptions(TypedDict, total=False):
    """What an op that adds the residual gets by name, where the site's facts have it: ``residual_multiplier``, the
    factor of ``x`` in the sum (Granite)."""

    residual_multiplier: float


class NormOptions(TypedDict, total=False):
    """What an op with norms gets by name, where the site's facts have it: ``norm_offset``, as in :func:`rms_norm`."""

    norm_offset: float


class AddNormOptions(SumOptions, NormOptions, total=False):
    """What an op gets by name that adds the residual and norms the sum."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, norm_offset: float = 0.0) -> Tensor:
    """Root-mean-square norm over the last dimension (arXiv:1910.07467), in float32; ``weight`` multiplies in ``x``'s
    dtype.

    Args:
        x: ``[..., H]``.
        weight: ``[H]``.
        norm_offset: added to the weight; if it is not 0, ``norm_offset + weight`` multiplies in float32 (Gemma, whose
            checkpoints store ``weight - 1``).

    Returns:
        ``[..., H]`` in ``x``'s dtype. Batch-invariant: a row's result is bit-identical in any batch.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if norm_offset:
        return (normed * (norm_offset + weight.float())).to(x.dtype)
    return weight * normed.to(x.dtype)


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, norm_offset: float = 0.0
) -> Tensor:
    """LayerNorm over the last dimension (arXiv:1607.06450), in float32 and rounded once.

    Args:
        x: ``[..., H]``.
        weight, bias: ``[H]``; ``None``: ones, and zeros.
        norm_offset: added to the weight (Nemotron, whose checkpoints store ``weight - 1``).

    Returns:
        ``[..., H]`` in ``x``'s dtype.
    """
    if norm_offset and weight is not None:
        return layer_norm_invariant(x, weight, bias, eps, norm_offset=norm_offset)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_invariant(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, norm_offset: float = 0.0
) -> Tensor:
    """Batch-invariant :func:`layer_norm`: a row's result is bit-identical in any batch."""
    wide = x.float()
    centered = wide - wide.mean(-1, keepdim=True)
    normed = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * (norm_offset + weight.float())
    return (normed if bias is None else normed + bias.float()).to(x.dtype)


def make_add_layer_norm(parts: Mapping[str, Callable[..., Tensor]]) -> AddNorm:
    """Builds ``add_layer_norm`` from the part ``layer_norm``."""
    norm = parts["layer_norm"]

    def add_layer_norm(
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        **options: Unpack[AddNormOptions],
    ) -> tuple[Tensor, Tensor]:
        """``(normed, sum)`` with ``sum = x + residual``, both ``[..., H]`` in ``x``'s dtype; ``options`` may have a
        factor of ``x``, and what is added to the weight. Nothing is changed in place."""
        factor = options.pop("residual_multiplier", None)
        total = (x if factor is None else x * factor) + residual
        return norm(total, weight, bias, eps, **options), total

    return add_layer_norm


def make_add_rms_norm(parts: Mapping[str, Callable[..., Tensor]]) -> AddNorm:
    """Builds ``add_rms_norm`` from the part ``rms_norm``."""
    norm = parts["rms_norm"]

    def add_rms_norm(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, **options: Unpack[AddNormOptions]
    ) -> tuple[Tensor, Tensor]:
        """``(normed, sum)`` with ``sum = x + residual``, both ``[..., H]`` in ``x``'s dtype; ``options`` may have a
        factor of ``x``, and what is added to the weight. Nothing is changed in place."""
        factor = options.pop("residual_multiplier", None)
        total = (x if factor is None else x * factor) + residual
        return norm(total, weight, eps, **options), total

    return add_rms_norm


def make_rms_norm_add(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``rms_norm_add`` from the part ``rms_norm``."""
    norm = parts["rms_norm"]

    def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float, **options: Unpack[NormOptions]) -> Tensor:
        """``residual + norm(x)``, ``[..., H]`` in ``x``'s dtype: the norm after a block whose input is not normed (OLMo
        2, arXiv:2501.00656). Nothing is changed in place."""
        return residual + norm(x, weight, eps, **options)

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


def make_sandwich_norm(parts: Mapping[str, Callable[..., Any]]) -> AddNorm:
    """Builds ``sandwich_norm`` from the parts ``rms_norm`` and ``add_rms_norm``."""
    norm, add_norm = parts["rms_norm"], parts["add_rms_norm"]

    def sandwich_norm(
        x: Tensor,
        residual: Tensor,
        post_weight: Tensor,
        pre_weight: Tensor,
        eps: float,
        **options: Unpack[NormOptions],
    ) -> tuple[Tensor, Tensor]:
        """The norms between two blocks if a block's input and output are both normed (Gemma 2, arXiv:2408.00118).

        Norms ``x``, the block's output, by ``post_weight``, adds ``residual``, and norms the sum by ``pre_weight`` for
        the next block: ``(normed, sum)``, both ``[..., H]`` in ``x``'s dtype. Weights are ``[H]``; ``options`` hold for
        both norms. Nothing is changed in place.
        """
        after = norm(x, post_weight, eps, **options)
        normed: tuple[Tensor, Tensor] = add_norm(after, residual, pre_weight, eps, **options)
        return normed

    return sandwich_norm
