"""Recurrent layers: the convolution before a recurrence, scans, the delta rule, and the gated norm after them. Results
are bit-identical in any batch and for any chunking of a prompt."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent.tails import with_accepted
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, heads_of, rows_of

_STEP = "pppipiii"
_causal_conv = library().function("causal_conv", f"ppipppi{_STEP}iidd")
_gated_delta_rule = library().function("gated_delta_rule", f"ppipipippppi{_STEP}iiiidd")
_state_space_scan = library().function("state_space_scan", f"ppipippipippffppi{_STEP}iiiidd")
_selective_scan = library().function("selective_scan", f"ppipippipipppippi{_STEP}iidd")
_gated_rms_norm = library().function("gated_rms_norm", "ppipipiiifdd")

_PAD = 16
"""Rows of states are padded to a multiple of it."""


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor, step: CacheStep, *, activation: str | None = "silu"
) -> Tensor:
    """As :func:`llmk.reference.recurrent.causal_conv.causal_conv`."""
    x, weight = rows_of(x), weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    _causal_conv(
        out.data_ptr(), x.data_ptr(), x.stride(0), weight.data_ptr(), None if bias is None else bias.data_ptr(),
        cache.data_ptr(), cache.stride(0), *_of(step), *weight.shape, activation == "silu", CODES[x.dtype],
    )  # fmt: skip
    return out


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    caches: tuple[Tensor, ...],
    step: CacheStep,
    *,
    gated: bool = False,
    activation: str = "",
) -> Tensor:
    """As :func:`llmk.reference.recurrent.short_conv.short_conv`."""
    rows = after = None
    if gated:
        before, after, x = x.chunk(3, dim=1)
        x = before * x
    if step.tails is not None:
        (x,), step, rows = with_accepted((x,), caches[1:], step)
    y = causal_conv(x, weight, bias, caches[0], step, activation=activation or None)
    y = y if rows is None else y[rows]
    return y if after is None else after * y


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cache: Tensor, step: CacheStep
) -> Tensor:
    """As :func:`llmk.reference.recurrent.delta_rule.gated_delta_rule`."""
    q, k, v = heads_of(q), heads_of(k), heads_of(v)
    g, beta = g.float().contiguous(), beta.float().contiguous()
    (tokens, key_heads, keys), (_, heads, values) = q.shape, v.shape
    out = torch.empty(v.shape, dtype=v.dtype)
    scratch = torch.empty(tokens * (2 * key_heads * _padded(keys) + heads), dtype=torch.float32)
    _gated_delta_rule(
        out.data_ptr(), q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), g.data_ptr(),
        beta.data_ptr(), scratch.data_ptr(), cache.data_ptr(), cache.stride(0), *_of(step), key_heads, heads, keys,
        values, CODES[v.dtype], CODES[cache.dtype],
    )  # fmt: skip
    return out


def state_space_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float | None],
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    """As :func:`llmk.reference.recurrent.state_space_scan.state_space_scan`."""
    x, b, c, dt = heads_of(x), heads_of(b), heads_of(c), rows_of(dt)
    a, d, dt_bias = (each.float().contiguous() for each in (a, d, dt_bias))
    (tokens, heads, size), (_, groups, state_size) = x.shape, b.shape
    out = torch.empty(x.shape, dtype=x.dtype)
    scratch = torch.empty(tokens * 2 * (groups * _padded(state_size) + heads), dtype=torch.float32)
    least, most = dt_limits
    _state_space_scan(
        out.data_ptr(), x.data_ptr(), x.stride(0), dt.data_ptr(), dt.stride(0), a.data_ptr(), b.data_ptr(),
        b.stride(0), c.data_ptr(), c.stride(0), d.data_ptr(), dt_bias.data_ptr(), least,
        inf if most is None else most, scratch.data_ptr(), cache.data_ptr(), cache.stride(0), *_of(step), groups,
        heads, size, state_size, CODES[x.dtype], CODES[cache.dtype],
    )  # fmt: skip
    return out


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    gate: Tensor,
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    """As :func:`llmk.reference.recurrent.selective_scan.selective_scan`."""
    x, dt, b, c, gate = map(rows_of, (x, dt, b, c, gate))
    (tokens, channels), state_size = x.shape, b.shape[1]
    a = torch.nn.functional.pad(a.float(), (0, _padded(state_size) - state_size)).contiguous()
    d, dt_bias = d.float().contiguous(), dt_bias.float().contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    scratch = torch.empty(tokens * 2 * _padded(state_size), dtype=torch.float32)
    _selective_scan(
        out.data_ptr(), x.data_ptr(), x.stride(0), dt.data_ptr(), dt.stride(0), a.data_ptr(), b.data_ptr(),
        b.stride(0), c.data_ptr(), c.stride(0), d.data_ptr(), dt_bias.data_ptr(), gate.data_ptr(), gate.stride(0),
        scratch.data_ptr(), cache.data_ptr(), cache.stride(0), *_of(step), channels, state_size, CODES[x.dtype],
        CODES[cache.dtype],
    )  # fmt: skip
    return out


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, groups: int = 1, norm_before_gate: bool = False
) -> Tensor:
    """As :func:`llmk.reference.recurrent.gated_norm.gated_rms_norm`."""
    rows, gates, weight = rows_of(x), rows_of(gate), weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    count, size = rows.shape
    _gated_rms_norm(
        out.data_ptr(), rows.data_ptr(), rows.stride(0), gates.data_ptr(), gates.stride(0), weight.data_ptr(), count,
        groups, size // groups, eps, not norm_before_gate, CODES[x.dtype],
    )  # fmt: skip
    return out


def _of(step: CacheStep) -> tuple[int | None, ...]:
    """The arguments that say which tokens and blocks are a request's."""
    table = step.block_table
    drafts = None if step.tails is None else step.tails.num_drafts.data_ptr()
    return (
        step.query_start.data_ptr(), step.seq_lens.data_ptr(), table.data_ptr(), table.stride(0), drafts,
        step.block_size, step.num_requests, step.num_tokens,
    )  # fmt: skip


def _padded(size: int) -> int:
    return -(-size // _PAD) * _PAD
