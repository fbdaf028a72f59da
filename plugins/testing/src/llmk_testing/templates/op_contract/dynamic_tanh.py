"""Dynamic tanh (arXiv:2503.10622), ``tanh(alpha * x) * weight + bias``: what is right, and a kernel of it."""

from __future__ import annotations

import torch
from torch import Tensor


def dynamic_tanh(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The reference, with which all kernels of the op are compared. It takes the arguments of the contract's signature,
    by position, computes in float32, and rounds once.

    Args:
        x: ``[..., size]``, which stays as it is.
        alpha: float32 ``[1]``.
        weight: ``[size]``.
        bias: ``[size]``, or ``None``.

    Returns:
        A new tensor like ``x``.
    """
    out = torch.tanh(x.float() * alpha.float()) * weight.float()
    return (out if bias is None else out + bias.float()).to(x.dtype)


def dynamic_tanh_in_place(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`dynamic_tanh` in one float32 tensor of its own; ``x`` may be one, and must not be changed."""
    wide = (x.float() * alpha.float()).tanh_().mul_(weight.float())
    return (wide if bias is None else wide.add_(bias.float())).to(x.dtype)
