"""Gated activations, with and without the gate and up projection; the soft cap; the sigmoid gate.

torch's own activations compute the last elements of a tensor by other (not vectorized) code than the rest. The
batch-invariant versions use float32 operators whose result does not depend on an element's position
(:mod:`llmk.reference.pointwise`): arithmetic, ``exp``, ``erf`` and ``tanh``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.pointwise import sigmoid, silu


class GatedOptions(TypedDict, total=False):
    """Parameters of a gated activation, as in :class:`~llmk.api.MoEFacts` (GPT-OSS, arXiv:2508.10925).

    The result is ``activation(alpha * gate) / alpha * (up + up_offset)``, of ``gate`` clamped to at most
    ``activation_limit``, and ``up`` clamped to the range between minus and plus this limit. Where any of them is given,
    the arithmetic is float32, rounded once, and batch-invariant.
    """

    activation_alpha: float
    activation_limit: float | None
    up_offset: float


def silu_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """``silu(gate) * up`` of ``x = [gate, up]``: ``[..., 2 * I]`` to ``[..., I]``, in ``x``'s dtype (SwiGLU,
    arXiv:2002.05202). ``options`` are its parameters (:class:`GatedOptions`)."""
    if options:
        return _gate(x, silu, **options)
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """``gelu(gate) * up`` with the exact GELU: ``[..., 2 * I]`` to ``[..., I]``, in ``x``'s dtype (GEGLU,
    arXiv:2002.05202). ``options`` are its parameters (:class:`GatedOptions`)."""
    if options:
        return _gate(x, _gelu, **options)
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


def gelu_tanh_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """:func:`gelu_and_mul` with GELU's tanh approximation."""
    if options:
        return _gate(x, _gelu_tanh, **options)
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def silu_and_mul_invariant(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """Batch-invariant :func:`silu_and_mul`: a row's result is bit-identical in any batch."""
    return _gate(x, silu, **options)


def gelu_and_mul_invariant(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """Batch-invariant :func:`gelu_and_mul`: a row's result is bit-identical in any batch."""
    return _gate(x, _gelu, **options)


def gelu_tanh_and_mul_invariant(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """Batch-invariant :func:`gelu_tanh_and_mul`: a row's result is bit-identical in any batch."""
    return _gate(x, _gelu_tanh, **options)


ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": gelu_tanh_and_mul,
}
"""Gated activations by the name that a checkpoint's ``hidden_act`` has after aliases are resolved."""

INVARIANT_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "silu": silu_and_mul_invariant,
    "gelu": gelu_and_mul_invariant,
    "gelu_tanh": gelu_tanh_and_mul_invariant,
}
"""The batch-invariant versions of :data:`ACTIVATIONS`."""


PLAIN_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": lambda x: _gelu(x),
    "gelu_tanh": lambda x: _gelu_tanh(x),
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
}
"""Activations without a gate, of float32; ``"relu2"`` is the square of ReLU (arXiv:2109.08668)."""


def make_gate_up_silu(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``gate_up_silu`` from the site's linear kernel (part ``linear``) and ``silu_and_mul``."""
    return _gate_up(parts["linear"], parts["silu_and_mul"])


def make_gate_up_gelu(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``gate_up_gelu``, which is ``gate_up_silu`` with the part ``gelu_and_mul``."""
    return _gate_up(parts["linear"], parts["gelu_and_mul"])


def make_gate_up_gelu_tanh(parts: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Builds ``gate_up_gelu_tanh``, which is ``gate_up_silu`` with the part ``gelu_tanh_and_mul``."""
    return _gate_up(parts["linear"], parts["gelu_tanh_and_mul"])


def activate(x: Tensor, activation: str) -> Tensor:
    """An activation without a gate, elementwise, any shape, in ``x``'s dtype; the arithmetic is float32, rounded once,
    and batch-invariant.

    Args:
        activation: a name in :data:`PLAIN_ACTIVATIONS`.
    """
    return PLAIN_ACTIVATIONS[activation](x.float()).to(x.dtype)


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """xIELU (arXiv:2411.13010), elementwise, any shape, in ``x``'s dtype; the arithmetic is float32, rounded once, and
    batch-invariant.

    ``softplus(alpha_p) * x * x + beta * x`` above zero, else ``(beta + softplus(alpha_n)) * (expm1(min(x, eps)) - x) +
    beta * x``. All parameters are float32 ``[1]``.
    """
    wide = x.float()
    above = F.softplus(alpha_p) * wide * wide
    below = (torch.expm1(torch.minimum(wide, eps)) - wide) * (beta + F.softplus(alpha_n))
    return (torch.where(wide > 0, above, below) + beta * wide).to(x.dtype)


def softcap(x: Tensor, cap: float) -> Tensor:
    """``cap * tanh(x / cap)``, which lies between ``-cap`` and ``cap``; any shape, in ``x``'s dtype (Gemma 2,
    arXiv:2408.00118)."""
    return cap * torch.tanh(x / cap)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """``x * sigmoid(gate)`` in float32, rounded once: ``[..., H]`` in ``x``'s dtype, with a gate of the same shape or
    ``[..., 1]``."""
    return (x.float() * sigmoid(gate.float())).to(x.dtype)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))


def _gate(x: Tensor, activate: Callable[[Tensor], Tensor], **options: Unpack[GatedOptions]) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    if not options:
        return activate(gate.float()).to(x.dtype) * up
    gate, up = gate.float(), up.float()
    alpha, limit = options.get("activation_alpha", 1.0), options.get("activation_limit")
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (activate(alpha * gate) / alpha * (up + options.get("up_offset", 0.0))).to(x.dtype)


def _gate_up(linear: Callable[..., Tensor], activate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gate_up(x: Tensor, weight: Any, bias: Tensor | None, **options: Unpack[GatedOptions]) -> Tensor:
        """``activate(linear(x, weight, bias))``: ``[tokens, H]`` to ``[tokens, I]``; ``weight`` is the linear kernel's
        prepared weight, ``options`` are the activation's parameters."""
        return activate(linear(x, weight, bias), **options)

    return gate_up
