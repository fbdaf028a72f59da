"""The gated delta rule, token by token: what a step reads and writes of a state passes once through a program's
registers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.recurrent.channels import Channels, input_of
from llmk_triton.recurrent.runs import block_after, block_before, is_kept, log_decay, run_of
from llmk_triton.recurrent.tiles import state_rows, warps_for


@triton.jit
def unit(x):
    """A vector (float32) divided by its 2-norm."""
    return x * tl.rsqrt(tl.sum(x * x, axis=0) + 1e-6)


@triton.jit
def _of_decay(x, head, column, KEY_DIM: tl.constexpr, CHANNEL_DECAYS: tl.constexpr):
    """A head's element of ``x``, or with ``CHANNEL_DECAYS`` its element for each of ``column``."""
    if CHANNEL_DECAYS:
        found = tl.load(x + head * KEY_DIM + column, column < KEY_DIM, other=0.0)
    else:
        found = tl.load(x + head)
    return found


@triton.jit(do_not_specialize=["table_stride", "block_size", "longest"])
def delta_tokens_kernel(
    q, k, v, q_row, k_row, v_row, q_head, k_head, v_head, a, b, a_row, a_head, b_row, b_head,
    conv_weight, decay, dt_bias, conv_cache, cache, query_start, seq_lens, block_table, num_drafts, out,
    conv_stride, cache_stride, table_stride, block_size, longest,
    HEADS: tl.constexpr, SHARED_BY: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, GROUP: tl.constexpr,
    VALUE_DIM: tl.constexpr, KERNEL: tl.constexpr, CONVOLVED: tl.constexpr, HAS_DRAFTS: tl.constexpr,
    CHANNEL_DECAYS: tl.constexpr, BOUND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ONE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Convolution, unless ``CONVOLVED``, and delta rule of requests with at most ``longest`` tokens. A program has
    ``ROWS`` rows of the state ``[VALUE_DIM, KEY_DIM]`` of one head of one request; the grid is ``[parts of heads,
    requests]``. With ``CHANNEL_DECAYS``, ``a`` and ``dt_bias`` have ``KEY_DIM`` elements for each
    head. ``ONE``: no request has more than one token."""
    head = tl.program_id(0) // tl.cdiv(VALUE_DIM, ROWS)
    row = tl.program_id(0) % tl.cdiv(VALUE_DIM, ROWS) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    request = tl.program_id(1)
    key_head, shared = head // SHARED_BY, head % SHARED_BY
    rate, bias = tl.load(decay + head), _of_decay(dt_bias, head, column, KEY_DIM, CHANNEL_DECAYS)
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if (count > 0) & (count <= longest):
        channels: tl.constexpr = 2 * KEYS + HEADS * VALUE_DIM
        block = block_before(block_table, table_stride, request, before, block_size)
        has_row, has_column = row < VALUE_DIM, column < KEY_DIM
        inside = has_row[:, None] & has_column[None, :]
        place = (head * VALUE_DIM + row)[:, None] * KEY_DIM + column[None, :]
        state = tl.load(cache + block * cache_stride + place, inside & (before > 0), other=0.0).to(tl.float32)
        window = conv_cache + block * conv_stride
        key_channel = key_head * KEY_DIM + column
        value = head * VALUE_DIM + row
        q_at, k_at = q + key_head * q_head + column, k + key_head * k_head + column
        v_at = v + key_head * v_head + shared * VALUE_DIM + row
        for at in tl.range(0, 1 if ONE else count):
            token = first + at
            to = block_after(block_table, table_stride, request, before + at + 1, block_size)
            k_unit = unit(input_of(
                k_at, k_row, conv_weight, conv_weight, window, before > 0, first, at, KEYS + key_channel, has_column,
                channels, KERNEL, False, CONVOLVED, out,
            ))  # fmt: skip
            q_unit = unit(input_of(
                q_at, q_row, conv_weight, conv_weight, window, before > 0, first, at, key_channel, has_column,
                channels, KERNEL, False, CONVOLVED, out,
            )) * KEY_DIM**-0.5  # fmt: skip
            wanted = input_of(
                v_at, v_row, conv_weight, conv_weight, window, before > 0, first, at, 2 * KEYS + value, has_row,
                channels, KERNEL, False, CONVOLVED, out,
            )  # fmt: skip
            given = _of_decay(a + token * a_row + key_head * a_head, shared, column, KEY_DIM, CHANNEL_DECAYS)
            fading = tl.exp(log_decay(given, rate, bias, BOUND))
            beta = tl.sigmoid(tl.load(b + token * b_row + key_head * b_head + shared).to(tl.float32))
            state *= fading[None, :] if CHANNEL_DECAYS else fading
            error = wanted - tl.sum(state * k_unit[None, :], axis=1)
            state += (beta * error)[:, None] * k_unit[None, :]
            y = tl.sum(state * q_unit[None, :], axis=1)
            tl.store(out + token * (HEADS * VALUE_DIM) + value, y.to(out.dtype.element_ty), has_row)
            if is_kept(at + 1, before, known, block_size):
                tl.store(cache + to * cache_stride + place, state.to(cache.dtype.element_ty), inside)


def delta_tokens(
    channels: Channels,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    decay: Tensor,
    dt_bias: Tensor,
    caches: tuple[Tensor, ...],
    step: CacheStep,
    out: Tensor,
    *,
    longest: int,
    is_convolved: bool,
    one: bool,
    decay_bound: float | None,
) -> None:
    """``gated_delta_rule`` of the convolution of ``channels``, or of ``channels`` if they are convolved, for requests
    with at most ``longest`` tokens, into ``out`` ``[tokens, heads, value_dim]``. ``a`` and ``b`` are ``[tokens,
    key_heads, heads / key_heads]``, ``a`` may have a further dimension ``key_dim``, as ``dt_bias`` then. States of the
    convolution are only read. If ``one`` is set, no request has more than one token."""
    _, heads, value_dim, key_dim = caches[1].shape
    columns = triton.next_power_of_2(key_dim)
    rows = state_rows(value_dim, heads * step.num_requests, columns, out.device)
    delta_tokens_kernel[(heads * triton.cdiv(value_dim, rows), step.num_requests)](
        *channels.arguments(), a, b, a.stride(0), a.stride(1), b.stride(0), b.stride(1), conv_weight, decay, dt_bias,
        caches[0], caches[1], step.query_start, step.seq_lens, step.block_table,
        step.query_start if step.tails is None else step.tails.num_drafts, out, caches[0].stride(0),
        caches[1].stride(0), step.block_table.stride(0), step.block_size, longest, HEADS=heads, SHARED_BY=a.shape[2],
        **channels.sizes(), VALUE_DIM=value_dim, KERNEL=conv_weight.shape[1], CONVOLVED=is_convolved,
        HAS_DRAFTS=step.tails is not None, CHANNEL_DECAYS=a.dim() == 4, BOUND=decay_bound or 0.0,
        ROWS=rows, COLUMNS=columns, ONE=one, num_warps=warps_for(rows * columns),
        num_stages=1, **pdl.options(),
    )  # fmt: skip
