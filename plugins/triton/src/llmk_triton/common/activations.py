"""Activations, one launch each. Intermediates are rounded where :mod:`llmk.reference.activations` rounds them."""

from __future__ import annotations

from math import inf
from typing import Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.reference.activations import GatedOptions

KINDS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
"""Activations; ``"relu2"`` is the square of ReLU."""
_BLOCK = 1024
UNLIMITED = tl.constexpr(float("inf"))
"""The limit of a gate that has none."""


@triton.jit
def activate(gate, KIND: tl.constexpr):
    """One of :data:`KINDS` of a float32 tensor."""
    if KIND == "silu":
        return gate * tl.sigmoid(gate)
    elif KIND == "relu":
        return tl.maximum(gate, 0.0)
    elif KIND == "relu2":
        return tl.maximum(gate, 0.0) * tl.maximum(gate, 0.0)
    elif KIND == "gelu":
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # 0.5 * (1 + tanh(y)) is sigmoid(2 * y).
        return gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))


@triton.jit
def activate_kernel(x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """``out = activate(x)`` for ``x`` ``[rows, SIZE]``, contiguous; each program computes part of one row."""
    place = tl.program_id(0).to(tl.int64) * SIZE
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = activate(tl.load(x + place + column, column < SIZE, other=0.0).to(tl.float32), KIND)
    tl.store(out + place + column, values.to(out.dtype.element_ty), column < SIZE)


@triton.jit
def gate_with(
    gate, up, like, KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """``activate(gate) * up`` of float32 values in ``like``'s precision, or with parameters, as
    :class:`llmk.reference.activations.GatedOptions` has them; without a limit, ``LIMIT`` is
    :data:`UNLIMITED`."""
    if ALPHA == 1.0 and LIMIT == UNLIMITED and OFFSET == 0.0:
        return activate(gate, KIND).to(like.dtype.element_ty).to(tl.float32) * up
    else:
        if LIMIT != UNLIMITED:
            gate = tl.minimum(gate, LIMIT, propagate_nan=tl.PropagateNan.ALL)
            up = tl.minimum(up, LIMIT, propagate_nan=tl.PropagateNan.ALL)
            up = tl.maximum(up, -LIMIT, propagate_nan=tl.PropagateNan.ALL)
        return activate(gate * ALPHA, KIND) / ALPHA * (up + OFFSET)


@triton.jit
def gated_kernel(
    x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """``out = gate_with(gate, up)`` for ``x`` ``[rows, 2 * SIZE]``, contiguous; each program computes part of one
    row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    gate = tl.load(x + row * 2 * SIZE + column, inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * SIZE + SIZE + column, inside, other=0.0).to(tl.float32)
    found = gate_with(gate, up, out, KIND, ALPHA, LIMIT, OFFSET)
    tl.store(out + row * SIZE + column, found.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["gate_row"])
def sigmoid_gate_kernel(x, gate, out, gate_row, SIZE: tl.constexpr, GATES: tl.constexpr, BLOCK: tl.constexpr):
    """``out = x * sigmoid(gate)`` for ``x`` ``[rows, SIZE]``, contiguous, and rows of ``GATES`` gates, one or ``SIZE``;
    each program computes part of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    values = tl.load(x + row * SIZE + column, inside, other=0.0).to(tl.float32)
    gates = gate + row * gate_row
    if GATES == 1:
        values *= tl.sigmoid(tl.load(gates).to(tl.float32))
    else:
        values *= tl.sigmoid(tl.load(gates + column, inside, other=0.0).to(tl.float32))
    tl.store(out + row * SIZE + column, values.to(out.dtype.element_ty), inside)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """As :func:`llmk.reference.activations.sigmoid_gate`; rows of ``gate`` may be parts of wider ones."""
    x = x.contiguous()
    size, out = x.shape[-1], torch.empty_like(x)
    gates = gate.reshape(-1, gate.shape[-1])
    gates = gates if gates.stride(1) == 1 else gates.contiguous()
    block = min(_BLOCK, triton.next_power_of_2(size))
    if x.numel():
        grid = (gates.shape[0], triton.cdiv(size, block))
        sigmoid_gate_kernel[grid](x, gates, out, gates.stride(0), size, gates.shape[1], block, num_warps=4)
    return out


def silu_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """As :func:`llmk.reference.activations.silu_and_mul`."""
    return gated(x, "silu", **options)


def gelu_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """As :func:`llmk.reference.activations.gelu_and_mul`."""
    return gated(x, "gelu", **options)


def gelu_tanh_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """As :func:`llmk.reference.activations.gelu_tanh_and_mul`."""
    return gated(x, "gelu_tanh", **options)


def activation(x: Tensor, kind: str) -> Tensor:
    """As :func:`llmk.reference.activations.activate`."""
    x = x.contiguous()
    size, out = x.shape[-1], torch.empty_like(x)
    block = min(_BLOCK, triton.next_power_of_2(size))
    if x.numel():
        activate_kernel[(x.numel() // size, triton.cdiv(size, block))](x, out, size, block, kind, num_warps=4)
    return out


@triton.jit
def xielu_kernel(x, alpha_p, alpha_n, beta, eps, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """xIELU of ``x`` ``[rows, SIZE]``, contiguous; each program computes part of one row. Parameters are float32
    ``[1]``."""
    place = tl.program_id(0).to(tl.int64) * SIZE
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place + column, column < SIZE, other=0.0).to(tl.float32)
    linear = tl.load(beta)
    above = _softplus(tl.load(alpha_p)) * values * values
    below = (_expm1(tl.minimum(values, tl.load(eps))) - values) * (linear + _softplus(tl.load(alpha_n)))
    found = tl.where(values > 0, above, below) + linear * values
    tl.store(out + place + column, found.to(out.dtype.element_ty), column < SIZE)


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))``."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _expm1(x):
    """``exp(x) - 1`` for ``x`` up to 0 or a little above; near 0 by its series, where the difference would lose all
    digits."""
    series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))))
    return tl.where(tl.abs(x) < 0.1, series, tl.exp(x) - 1.0)


@triton.jit
def softcap_kernel(x, out, cap, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """``cap * tanh(x / cap)`` of ``x`` ``[rows, SIZE]``, contiguous, rounded where the reference rounds; each program
    computes part of one row."""
    place = tl.program_id(0).to(tl.int64) * SIZE
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place + column, column < SIZE, other=0.0)
    inner = (values.to(tl.float32) / cap).to(values.dtype).to(tl.float32)
    # For a negative y, tanh(y) is e / (2 + e) with e = exp(2 * y) - 1, which loses no digits near 0.
    shrunk = _expm1(-2.0 * tl.abs(inner))
    size = -shrunk / (2.0 + shrunk)
    inner = tl.where(inner < 0, -size, size).to(values.dtype).to(tl.float32)
    tl.store(out + place + column, (cap * inner).to(values.dtype), column < SIZE)


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """As :func:`llmk.reference.activations.xielu`."""
    x = x.contiguous()
    size, out = x.shape[-1], torch.empty_like(x)
    block = min(_BLOCK, triton.next_power_of_2(size))
    if x.numel():
        grid = (x.numel() // size, triton.cdiv(size, block))
        xielu_kernel[grid](x, alpha_p, alpha_n, beta, eps, out, size, block, num_warps=4)
    return out


def softcap(x: Tensor, cap: float) -> Tensor:
    """As :func:`llmk.reference.activations.softcap`."""
    x = x.contiguous()
    size, out = x.shape[-1], torch.empty_like(x)
    block = min(_BLOCK, triton.next_power_of_2(size))
    if x.numel():
        softcap_kernel[(x.numel() // size, triton.cdiv(size, block))](x, out, cap, size, block, num_warps=4)
    return out


def gated(x: Tensor, kind: str, **options: Unpack[GatedOptions]) -> Tensor:
    """Any of these, by the name of its activation."""
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], size)
    block = min(_BLOCK, triton.next_power_of_2(size))
    rows = x.numel() // (2 * size)
    if rows:
        gated_kernel[(rows, triton.cdiv(size, block))](x, out, size, block, kind, **gating(options), num_warps=4)
    return out


def gating(options: GatedOptions) -> dict[str, float]:
    """The parameters of :func:`gate_with`."""
    limit = options.get("activation_limit")
    return {
        "ALPHA": options.get("activation_alpha", 1.0),
        "LIMIT": inf if limit is None else limit,
        "OFFSET": options.get("up_offset", 0.0),
    }
