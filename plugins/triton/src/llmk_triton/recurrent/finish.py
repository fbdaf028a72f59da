"""The last kernel of a recurrent layer: the gated norm, and the states of the convolution, which no one reads then."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl, tuples
from llmk_triton.recurrent.channels import Channels, load_channels
from llmk_triton.recurrent.runs import block_after, block_before, rounded, run_of

_TILE = 2048
"""Elements of norms per program at least: several short norms share one."""
_COLUMNS = 512
"""Channels whose states one program writes."""


@triton.jit
def _norm_rows(
    y, gate, weight, out, row, num_rows, query_start, num_requests, gate_row, gate_head, EPS: tl.constexpr,
    SIZE: tl.constexpr, NORMS: tl.constexpr, GATE_GROUP: tl.constexpr, SHARED_WEIGHT: tl.constexpr,
    HAS_NORM: tl.constexpr, NORM_FIRST: tl.constexpr, SIGMOID: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gated norm, or only the gate, of rows of ``y`` ``[tokens * NORMS, SIZE]``; those of padding become zeros."""
    column, token, norm = tl.arange(0, BLOCK), row // NORMS, row % NORMS
    real = row < tl.load(query_start + num_requests) * NORMS
    inside = real[:, None] & (column < SIZE)[None, :]
    place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    index = norm[:, None] * SIZE + column[None, :]
    values = tl.load(y + place, inside, other=0.0).to(tl.float32)
    gates = gate + token.to(tl.int64)[:, None] * gate_row + index // GATE_GROUP * gate_head + index % GATE_GROUP
    given = tl.load(gates, inside, other=0.0).to(tl.float32)
    gating = (1.0 if SIGMOID else given) / (1.0 + tl.exp(-given))
    if not NORM_FIRST:
        values *= gating
    written = (row < num_rows)[:, None] & (column < SIZE)[None, :]
    if HAS_NORM:
        values *= tl.rsqrt(tl.sum(values * values, axis=1) / SIZE + EPS)[:, None]
        where = column[None, :] if SHARED_WEIGHT else index
        scale = tl.load(weight + where, written, other=0.0).to(tl.float32)
        values = rounded(rounded(values, out) * scale, out)
    if NORM_FIRST:
        values *= gating
    tl.store(out + place, values.to(out.dtype.element_ty), written)


@triton.jit
def _write_states(
    q, k, v, q_row, k_row, v_row, q_head, k_head, v_head, cache, first, before, known, request, block_table, channel,
    cache_stride, table_stride, block_size, CHANNELS: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr,
    GROUP: tl.constexpr, KERNEL: tl.constexpr,
):  # fmt: skip
    """The last inputs of some channels of a request: after its last token that is no draft, and after all that fill a
    block. The last comes first, because the first may overwrite what others read."""
    inside = channel < CHANNELS
    old = cache + block_before(block_table, table_stride, request, before, block_size) * cache_stride + channel
    for back in tl.range(0, (before + known - 1) // block_size - before // block_size + 1):
        end = ((before + known - 1) // block_size + 1 - back) * block_size
        after = tl.minimum(end - before, known)
        found = tuples.nothing()
        for tap in tl.static_range(KERNEL - 1):
            source = after + tap - (KERNEL - 1)
            value = load_channels(
                first + source, channel, inside & (source >= 0), q, k, v, q_row, k_row, v_row, q_head, k_head, v_head,
                KEYS, KEY_DIM, GROUP,
            )  # fmt: skip
            kept = tl.load(old + (after + tap) * CHANNELS, inside & (source < 0) & (before > 0), other=0.0)
            found = tuples.append(found, tl.where(source >= 0, value, kept))
        new = cache + block_after(block_table, table_stride, request, before + after, block_size) * cache_stride
        for tap in tl.static_range(KERNEL - 1):
            tl.store(new + tap * CHANNELS + channel, found[tap].to(cache.dtype.element_ty), inside)


@triton.jit(
    do_not_specialize=["num_rows", "num_requests", "norm_programs", "parts", "table_stride", "block_size", "num_norms"]
)
def finish_kernel(
    y, gate, weight, out, num_rows, row_start, num_requests, gate_row, gate_head, norm_programs, parts,
    q, k, v, q_row, k_row, v_row, q_head, k_head, v_head, cache, query_start, seq_lens, block_table, num_drafts,
    cache_stride, table_stride, block_size,
    EPS: tl.constexpr, SIZE: tl.constexpr, NORMS: tl.constexpr, GATE_GROUP: tl.constexpr, SHARED_WEIGHT: tl.constexpr,
    HAS_NORM: tl.constexpr, NORM_FIRST: tl.constexpr, SIGMOID: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, GROUP: tl.constexpr, KERNEL: tl.constexpr,
    COLUMNS: tl.constexpr, HAS_DRAFTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first ``norm_programs`` programs norm ``ROWS`` rows each; each other one writes the states of some channels
    of a request, which ``parts`` of them share."""
    program = tl.program_id(0)
    pdl.release(PDL)
    pdl.wait(PDL)
    if program < norm_programs:
        row = program * ROWS + tl.arange(0, ROWS)
        _norm_rows(
            y, gate, weight, out, row, num_rows, row_start, num_requests, gate_row, gate_head, EPS, SIZE, NORMS,
            GATE_GROUP, SHARED_WEIGHT, HAS_NORM, NORM_FIRST, SIGMOID, BLOCK,
        )  # fmt: skip
    elif KERNEL > 1:
        request = (program - norm_programs) // parts
        channel = (program - norm_programs) % parts * COLUMNS + tl.arange(0, COLUMNS)
        first, _, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
        if known > 0:
            _write_states(
                q, k, v, q_row, k_row, v_row, q_head, k_head, v_head, cache, first, before, known, request,
                block_table, channel, cache_stride, table_stride, block_size, CHANNELS, KEYS, KEY_DIM, GROUP, KERNEL,
            )  # fmt: skip


def finish(
    y: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    eps: float,
    channels: Channels,
    cache: Tensor,
    step: CacheStep,
    row_start: Tensor,
    *,
    has_states: bool = True,
    norm_first: bool = False,
    gate_activation: str = "silu",
) -> Tensor:
    """``gated_rms_norm`` of ``y``, and if it ``has_states``, those of the convolution.

    Args:
        y: ``[tokens, norms, size]``, contiguous; each norm is by itself.
        gate: ``[tokens, heads, group]`` with as many elements per token, the last dimension contiguous.
        weight: ``[norms * size]``, or ``[size]``; ``None``: there is a gate alone.
        cache: ``[num_blocks, k - 1, channels]``.
        row_start: int32 ``[requests + 1]`` of the rows of ``y``, of which those behind the last become zeros. It
            differs from ``step.query_start`` where ``channels`` have more rows, as those of accepted drafts.
    """
    tokens, norms, size = y.shape
    out, block, num_rows = torch.empty_like(y), triton.next_power_of_2(size), tokens * norms
    rows = max(1, _TILE // block)
    norm_programs, parts = triton.cdiv(num_rows, rows), triton.cdiv(channels.count, _COLUMNS)
    finish_kernel[(norm_programs + step.num_requests * parts * has_states,)](
        y, gate, y if weight is None else weight, out, num_rows, row_start, step.num_requests, gate.stride(0),
        gate.stride(1), norm_programs, parts, *channels.arguments(), cache, step.query_start, step.seq_lens,
        step.block_table, step.query_start if step.tails is None else step.tails.num_drafts, cache.stride(0),
        step.block_table.stride(0), step.block_size, EPS=eps, SIZE=size, NORMS=norms, GATE_GROUP=gate.shape[-1],
        SHARED_WEIGHT=weight is not None and weight.numel() == size, HAS_NORM=weight is not None,
        NORM_FIRST=norm_first, SIGMOID=gate_activation == "sigmoid", ROWS=rows, BLOCK=block, CHANNELS=channels.count,
        **channels.sizes(), KERNEL=cache.shape[1] + 1, COLUMNS=_COLUMNS, HAS_DRAFTS=step.tails is not None,
        num_warps=min(max(rows * block // 512, 1), 16), **pdl.options(),
    )  # fmt: skip
    return out
