"""The selective scan of Mamba-2, token by token: what a step reads and writes of a state passes once through a
program's registers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.recurrent.channels import input_of
from llmk_triton.recurrent.runs import block_after, block_before, is_kept, run_of, softplus
from llmk_triton.recurrent.tiles import state_rows, warps_for


@triton.jit
def step_size(dt, bias, LEAST: tl.constexpr, MOST: tl.constexpr, HAS_MOST: tl.constexpr):
    """The step size, by what the layer projects."""
    size = tl.maximum(softplus(dt.to(tl.float32) + bias), LEAST)
    if HAS_MOST:
        size = tl.minimum(size, MOST)
    return size


@triton.jit(do_not_specialize=["table_stride", "block_size", "longest"])
def scan_tokens_kernel(
    mixed, dt, conv_weight, conv_bias, a, d, dt_bias, conv_cache, cache, query_start, seq_lens, block_table, num_drafts,
    out, mixed_row, dt_row, conv_stride, cache_stride, table_stride, block_size, longest,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, KERNEL: tl.constexpr,
    HAS_BIAS: tl.constexpr, CONVOLVED: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, HAS_MOST: tl.constexpr,
    HAS_DRAFTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ONE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Convolution, unless ``CONVOLVED``, and scan of requests with at most ``longest`` tokens. A program has ``ROWS``
    rows of the state ``[HEAD_DIM, SIZE]`` of one head of one request; the grid is ``[parts of heads, requests]``.
    ``ONE``: no request has more than one token."""
    head = tl.program_id(0) // tl.cdiv(HEAD_DIM, ROWS)
    row = tl.program_id(0) % tl.cdiv(HEAD_DIM, ROWS) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    request = tl.program_id(1)
    inner: tl.constexpr = HEADS * HEAD_DIM
    channels: tl.constexpr = inner + 2 * GROUPS * SIZE
    rate, skip, bias = tl.load(a + head), tl.load(d + head), tl.load(dt_bias + head)
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if (count > 0) & (count <= longest):
        block = block_before(block_table, table_stride, request, before, block_size)
        has_row, has_column = row < HEAD_DIM, column < SIZE
        inside = has_row[:, None] & has_column[None, :]
        place = (head * HEAD_DIM + row)[:, None] * SIZE + column[None, :]
        state = tl.load(cache + block * cache_stride + place, inside & (before > 0), other=0.0).to(tl.float32)
        x_channel = head * HEAD_DIM + row
        b_channel = inner + head // (HEADS // GROUPS) * SIZE + column
        c_channel = b_channel + GROUPS * SIZE
        window = conv_cache + block * conv_stride
        for at in tl.range(0, 1 if ONE else count):
            token = first + at
            to = block_after(block_table, table_stride, request, before + at + 1, block_size)
            b = input_of(
                mixed + b_channel, mixed_row, conv_weight, conv_bias, window, before > 0, first, at, b_channel,
                has_column, channels, KERNEL, HAS_BIAS, CONVOLVED, out,
            )  # fmt: skip
            c = input_of(
                mixed + c_channel, mixed_row, conv_weight, conv_bias, window, before > 0, first, at, c_channel,
                has_column, channels, KERNEL, HAS_BIAS, CONVOLVED, out,
            )  # fmt: skip
            x = input_of(
                mixed + x_channel, mixed_row, conv_weight, conv_bias, window, before > 0, first, at, x_channel,
                has_row, channels, KERNEL, HAS_BIAS, CONVOLVED, out,
            )  # fmt: skip
            size = step_size(tl.load(dt + token * dt_row + head), bias, LEAST, MOST, HAS_MOST)
            state = tl.exp(size * rate) * state + (size * x)[:, None] * b[None, :]
            y = tl.sum(state * c[None, :], axis=1) + skip * x
            tl.store(out + token * inner + x_channel, y.to(out.dtype.element_ty), has_row)
            if is_kept(at + 1, before, known, block_size):
                tl.store(cache + to * cache_stride + place, state.to(cache.dtype.element_ty), inside)


def scan_tokens(
    mixed: Tensor,
    dt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float | None],
    caches: tuple[Tensor, ...],
    step: CacheStep,
    out: Tensor,
    *,
    longest: int,
    is_convolved: bool,
    one: bool,
) -> None:
    """``state_space_scan`` of the convolution of ``mixed``, or of ``mixed`` if it ``is_convolved``, for requests with
    at most ``longest`` tokens, into ``out`` ``[tokens, heads, head_dim]``. States of the convolution are only read. If
    ``one`` is set, no request has more than one token: that kernel has no loop, and may round otherwise."""
    _, heads, head_dim, size = caches[1].shape
    columns = triton.next_power_of_2(size)
    rows = state_rows(head_dim, heads * step.num_requests, columns, out.device)
    groups = (mixed.shape[1] - heads * head_dim) // (2 * size)
    least, most = dt_limits
    scan_tokens_kernel[(heads * triton.cdiv(head_dim, rows), step.num_requests)](
        mixed, dt, conv_weight, conv_weight if conv_bias is None else conv_bias, a, d, dt_bias, caches[0], caches[1],
        step.query_start, step.seq_lens, step.block_table,
        step.query_start if step.tails is None else step.tails.num_drafts, out, mixed.stride(0), dt.stride(0),
        caches[0].stride(0), caches[1].stride(0), step.block_table.stride(0), step.block_size, longest,
        HEADS=heads, HEAD_DIM=head_dim, GROUPS=groups, SIZE=size, KERNEL=conv_weight.shape[1],
        HAS_BIAS=conv_bias is not None, CONVOLVED=is_convolved, LEAST=float(least),
        MOST=0.0 if most is None else float(most), HAS_MOST=most is not None, HAS_DRAFTS=step.tails is not None,
        ROWS=rows, COLUMNS=columns, ONE=one,
        num_warps=warps_for(rows * columns), num_stages=1, **pdl.options(),
    )  # fmt: skip
