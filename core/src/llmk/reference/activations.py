"""Gated activations, and the product that feeds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``x = [gate, up]``: ``[..., 2 * I]`` to ``[..., I]``, in ``x``'s dtype (SwiGLU,
    arXiv:2002.05202)."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(x: Tensor) -> Tensor:
    """``gelu(gate) * up`` with the exact GELU: ``[..., 2 * I]`` to ``[..., I]``, in ``x``'s dtype (GEGLU,
    arXiv:2002.05202)."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """``gelu(gate) * up`` with GELU's tanh approximation: ``[..., 2 * I]`` to ``[..., I]``, in ``x``'s dtype."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": gelu_tanh_and_mul,
}
"""Gated activations by the name that a checkpoint's ``hidden_act`` has after aliases are resolved."""


def make_gate_up_silu(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[[Tensor, Any, Tensor | None], Tensor]:
    """Builds ``gate_up_silu`` from the site's linear kernel (part ``linear``) and ``silu_and_mul``."""
    linear, activate = parts["linear"], parts["silu_and_mul"]

    def gate_up_silu(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        """``silu_and_mul(linear(x, weight, bias))``: ``[tokens, H]`` to ``[tokens, I]``; ``weight`` is what the linear
        kernel prepared."""
        return activate(linear(x, weight, bias))

    return gate_up_silu
