"""Short convolutions by themselves: gated before and after, or activated."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent.tails import with_accepted
from llmk_triton.common import pdl, tuples
from llmk_triton.recurrent.runs import (
    block_after,
    block_before,
    clear_padding,
    request_of,
    request_room,
    run_of,
    with_padding,
)

_FEW = 8
"""Most tokens of a request that are computed one by one."""
_COLUMNS, _ROWS = 128, 16


@triton.jit
def _input(x, row, stride, channel, inside, like, CHANNELS: tl.constexpr, GATED: tl.constexpr):
    """The input of the convolution in ``row`` (int64), float32: the channels times their first gate, rounded."""
    place = x + row * stride + channel
    if GATED:
        gate = tl.load(place, inside, other=0.0).to(tl.float32)
        value = tl.load(place + 2 * CHANNELS, inside, other=0.0).to(tl.float32)
        return (gate * value).to(like.dtype.element_ty).to(tl.float32)
    return tl.load(place, inside, other=0.0).to(tl.float32)


@triton.jit
def _output(
    total, bias, after, row, after_row, channel, inside, like, CHANNELS: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """What becomes of the convolution's sum, in the dtype that ``like`` points to."""
    if HAS_BIAS:
        total += tl.load(bias + channel, inside, other=0.0).to(tl.float32)
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    if GATED:
        gate = tl.load(after + row * after_row + CHANNELS + channel, inside, other=0.0).to(tl.float32)
        total = total.to(like.dtype.element_ty).to(tl.float32) * gate
    return total.to(like.dtype.element_ty)


@triton.jit(do_not_specialize=["x_row", "after_row", "table_stride", "block_size", "longest"])
def conv_tokens_kernel(
    x, after, weight, bias, cache, query_start, seq_lens, block_table, num_drafts, out, x_row, after_row, cache_stride,
    table_stride, block_size, longest,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, GATED: tl.constexpr, GATED_AFTER: tl.constexpr,
    HAS_BIAS: tl.constexpr, SILU: tl.constexpr, HAS_DRAFTS: tl.constexpr, ALIKE: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The convolution of requests with at most ``longest`` tokens, and the states of all. A program has ``COLUMNS``
    channels of a request; the grid is ``[parts of the channels, requests]``."""
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    request, inside = tl.program_id(1), channel < CHANNELS
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if ALIKE:
        clear_padding(out, query_start, channel, inside, CHANNELS)
    old = cache + block_before(block_table, table_stride, request, before, block_size) * cache_stride + channel
    if (count > 0) & (count <= longest):
        for at in tl.range(0, count):
            total = tl.zeros([COLUMNS], tl.float32)
            for tap in tl.static_range(KERNEL):
                source = at + tap - (KERNEL - 1)
                value = _input(x, first + source, x_row, channel, inside & (source >= 0), out, CHANNELS, GATED)
                if tap < KERNEL - 1:
                    kept = tl.load(old + (at + tap) * CHANNELS, inside & (source < 0) & (before > 0), other=0.0)
                    value = tl.where(source >= 0, value, kept.to(tl.float32))
                total += value * tl.load(weight + channel * KERNEL + tap, inside, other=0.0).to(tl.float32)
            y = _output(
                total, bias, after, first + at, after_row, channel, inside, out, CHANNELS, GATED_AFTER, HAS_BIAS, SILU
            )  # fmt: skip
            tl.store(out + (first + at) * CHANNELS + channel, y, inside)
    if (KERNEL > 1) & (known > 0):
        # The last state comes first, because the first may overwrite what others read.
        for back in tl.range(0, (before + known - 1) // block_size - before // block_size + 1):
            end = ((before + known - 1) // block_size + 1 - back) * block_size
            stop = tl.minimum(end - before, known)
            found = tuples.nothing()
            for tap in tl.static_range(KERNEL - 1):
                source = stop + tap - (KERNEL - 1)
                value = _input(x, first + source, x_row, channel, inside & (source >= 0), out, CHANNELS, GATED)
                kept = tl.load(old + (stop + tap) * CHANNELS, inside & (source < 0) & (before > 0), other=0.0)
                found = tuples.append(found, tl.where(source >= 0, value, kept.to(tl.float32)))
            new = cache + block_after(block_table, table_stride, request, before + stop, block_size) * cache_stride
            for tap in tl.static_range(KERNEL - 1):
                tl.store(new + tap * CHANNELS + channel, found[tap].to(cache.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["x_row", "after_row", "last", "table_stride", "block_size", "longest"])
def conv_rows_kernel(
    x, after, weight, bias, cache, query_start, seq_lens, block_table, out, x_row, after_row, last, cache_stride,
    table_stride, block_size, longest,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, GATED: tl.constexpr, GATED_AFTER: tl.constexpr,
    HAS_BIAS: tl.constexpr, SILU: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The convolution of the rows of requests with more than ``longest`` tokens; states are only read."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pdl.release(PDL)
    pdl.wait(PDL)
    there = row < tl.load(query_start + last + 1)
    request = request_of(query_start, row, last, STEPS)
    first, count, before, _ = run_of(query_start, seq_lens, query_start, request, False)
    there &= count > longest
    place = block_table + request.to(tl.int64) * table_stride + tl.maximum(before - 1, 0) // block_size
    state = cache + tl.load(place, there & (before > 0), other=0).to(tl.int64) * cache_stride
    inside = there[:, None] & (channel < CHANNELS)[None, :]
    at = (row - first.to(tl.int32))[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tap in tl.static_range(KERNEL):
        source = at + tap - (KERNEL - 1)
        new = inside & (source >= 0)
        value = _input(x, first[:, None] + source, x_row, channel[None, :], new, out, CHANNELS, GATED)
        if tap < KERNEL - 1:
            old = state[:, None] + (at + tap) * CHANNELS + channel[None, :]
            kept = tl.load(old, inside & (source < 0) & (before > 0)[:, None], other=0.0)
            value = tl.where(source >= 0, value, kept.to(tl.float32))
        taps = tl.load(weight + channel * KERNEL + tap, channel < CHANNELS, other=0.0).to(tl.float32)
        total += value * taps[None, :]
    wide = row.to(tl.int64)[:, None]
    y = _output(
        total, bias, after, wide, after_row, channel[None, :], inside, out, CHANNELS, GATED_AFTER, HAS_BIAS, SILU
    )  # fmt: skip
    tl.store(out + wide * CHANNELS + channel[None, :], y, inside)


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
    """As :func:`llmk.reference.recurrent.short_conv.short_conv`: one launch; for prompts, a second. With drafts, the
    gates are operators of their own."""
    channels, kernel = weight.shape
    gate, rows = x if x.stride(1) == 1 else x.contiguous(), None
    x, both = gate, gated
    if step.tails is not None:
        inputs = x[:, :channels] * x[:, 2 * channels :] if gated else x
        (x,), step, rows = with_accepted((inputs,), caches[1:], step)
        both = False
    out = with_padding(step, channels, x)
    given = (x, gate, weight, weight if bias is None else bias, caches[0], step.query_start, step.seq_lens)
    strides = (x.stride(0), gate.stride(0))
    table = (caches[0].stride(0), step.block_table.stride(0), step.block_size)
    own = {"CHANNELS": channels, "KERNEL": kernel, "GATED": both, "GATED_AFTER": both, "HAS_BIAS": bias is not None}
    own |= {"SILU": activation == "silu", "COLUMNS": _COLUMNS, "num_warps": 4, **pdl.options()}
    parts, drafts = triton.cdiv(channels, _COLUMNS), step.query_start if step.tails is None else step.tails.num_drafts
    if step.max_query_len > _FEW:
        steps = request_room(step.num_requests).bit_length()
        conv_rows_kernel[(triton.cdiv(step.num_tokens, _ROWS), parts)](
            *given, step.block_table, out, *strides, step.num_requests - 1, *table, _FEW, **own, STEPS=steps,
            ROWS=_ROWS,
        )  # fmt: skip
    conv_tokens_kernel[(parts, step.num_requests)](
        *given, step.block_table, drafts, out, *strides, *table, _FEW, **own, HAS_DRAFTS=step.tails is not None,
        ALIKE=step.num_tokens == step.num_requests,
    )  # fmt: skip
    out = out if rows is None else out[rows]
    return out * gate[:, channels : 2 * channels] if gated and not both else out
