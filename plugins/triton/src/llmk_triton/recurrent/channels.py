"""The channels of a layer's convolution, where the projection left them, and the convolution itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl, tuples
from llmk_triton.recurrent.runs import request_of, request_room, rounded, run_of

_COLUMNS = 128
"""Channels of a program of the convolution that is by itself."""
_FEW_ROWS, _ROWS, _MANY_TOKENS = 8, 16, 512
"""Its rows, in steps of fewer tokens than these, and in others."""

MANY_REQUESTS = 8
"""Requests from which the convolution is by itself. A program of a state that also convolves has registers for one or
two of its kind per multiprocessor, which read memory at half the rate (H100)."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Queries, keys and values, which the convolution numbers in this order. Without queries and keys, all channels are
    in ``v``, whose rows are then contiguous.

    Attributes:
        q, k: ``[tokens, key_heads, key_dim]``.
        v: ``[tokens, key_heads, group]``: the channels of all heads that share a key head. Last dimensions are
            contiguous, the others have any strides.
    """

    v: Tensor
    q: Tensor | None = None
    k: Tensor | None = None

    @property
    def count(self) -> int:
        """All channels of a token."""
        keys = 0 if self.q is None else 2 * self.q[0].numel()
        return keys + self.v[0].numel()

    def of(self, rows: Tensor) -> Channels:
        """Those of other ``rows``, ``[tokens, channels]`` in the order of the convolution."""
        if self.q is None or self.k is None:
            return Channels(rows.unsqueeze(1))
        sizes = [self.q[0].numel(), self.k[0].numel(), self.v[0].numel()]
        q, k, v = (part.unflatten(1, (self.q.shape[1], -1)) for part in rows.split_with_sizes(sizes, 1))
        return Channels(v, q, k)

    def arguments(self) -> tuple[Any, ...]:
        """What kernels take: pointers, row strides and head strides, in the order ``q, k, v``."""
        q = self.v if self.q is None else self.q
        k = self.v if self.k is None else self.k
        parts = q, k, self.v
        return *parts, *(part.stride(0) for part in parts), *(part.stride(1) for part in parts)

    def sizes(self) -> dict[str, int]:
        """Their sizes, as kernels take them."""
        if self.q is None:
            return {"KEYS": 0, "KEY_DIM": 1, "GROUP": self.v.shape[-1]}
        return {"KEYS": self.q[0].numel(), "KEY_DIM": self.q.shape[-1], "GROUP": self.v.shape[-1]}


@triton.jit
def load_channels(
    row, channel, inside, q, k, v, q_row, k_row, v_row, q_head, k_head, v_head,
    KEYS: tl.constexpr, KEY_DIM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What each of ``row`` (int64) has in each of ``channel``."""
    if KEYS == 0:
        return tl.load(v + row * v_row + channel, inside, other=0.0)
    key, value, in_q, in_k = channel % KEYS, channel - 2 * KEYS, channel < KEYS, channel < 2 * KEYS
    head, within = key // KEY_DIM, key % KEY_DIM
    # Not one load through a choice of pointers, which AMD's compiler can't follow.
    of_q = tl.load(q + row * q_row + head * q_head + within, inside & in_q, other=0.0)
    of_k = tl.load(k + row * k_row + head * k_head + within, inside & in_k & (channel >= KEYS), other=0.0)
    of_v = tl.load(v + row * v_row + value // GROUP * v_head + value % GROUP, inside & (value >= 0), other=0.0)
    return tl.where(in_q, of_q, tl.where(in_k, of_k, of_v))


@triton.jit
def activated(total, bias, channel, inside, HAS_BIAS: tl.constexpr):
    """SiLU of the convolution's sum and its bias."""
    if HAS_BIAS:
        total += tl.load(bias + channel, inside, other=0.0).to(tl.float32)
    return total / (1.0 + tl.exp(-total))


@triton.jit
def convolved(
    x, stride, weight, bias, state, has_state, first, at, channel, inside, num_channels,
    KERNEL: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """The activated convolution at token ``at`` of a request, whose first row in the step is ``first`` (int64), in
    float32.

    ``x`` points to the channels in row 0, ``stride`` is the distance to the next row; ``state`` holds the ``KERNEL -
    1`` inputs before the step.
    """
    total = tl.zeros(inside.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        source = at + tap - (KERNEL - 1)
        new = tl.load(x + (first + source) * stride, inside & (source >= 0), other=0.0)
        if tap < KERNEL - 1:
            old = state + (at + tap) * num_channels + channel
            new = tl.where(source >= 0, new, tl.load(old, inside & (source < 0) & has_state, other=0.0))
        total += new.to(tl.float32) * tl.load(weight + channel * KERNEL + tap, inside, other=0.0).to(tl.float32)
    return activated(total, bias, channel, inside, HAS_BIAS)


@triton.jit
def input_of(
    x, stride, weight, bias, state, has_state, first, at, channel, inside, num_channels,
    KERNEL: tl.constexpr, HAS_BIAS: tl.constexpr, CONVOLVED: tl.constexpr, like,
):  # fmt: skip
    """Of token ``at``, what comes out of the convolution, float32 and rounded to the dtype that ``like`` points to: as
    :func:`convolved` computes it, or with ``CONVOLVED`` as ``x`` has it."""
    if CONVOLVED:
        return tl.load(x + (first + at) * stride, inside, other=0.0).to(tl.float32)
    return rounded(
        convolved(
            x, stride, weight, bias, state, has_state, first, at, channel, inside, num_channels, KERNEL, HAS_BIAS
        ),
        like,
    )


@triton.jit(do_not_specialize=["num_tokens", "last", "table_stride", "block_size"])
def convolve_kernel(
    q, k, v, q_row, k_row, v_row, q_head, k_head, v_head,
    weight, bias, cache, query_start, seq_lens, block_table, out, num_tokens, last,
    cache_stride, table_stride, block_size,
    CHANNELS: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, GROUP: tl.constexpr, KERNEL: tl.constexpr,
    HAS_BIAS: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WRITES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The convolution of all rows, ``out`` ``[num_tokens, CHANNELS]``; rows of padding are not written. States are only
    read, unless it ``WRITES`` those of requests that have one row each."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pdl.release(PDL)
    pdl.wait(PDL)
    there = row < tl.load(query_start + last + 1)
    request = request_of(query_start, row, last, STEPS)
    first, _, before, _ = run_of(query_start, seq_lens, query_start, request, False)
    place = block_table + request.to(tl.int64) * table_stride + tl.maximum(before - 1, 0) // block_size
    state = cache + tl.load(place, there & (before > 0), other=0).to(tl.int64) * cache_stride
    inside = there[:, None] & (channel < CHANNELS)[None, :]
    at = (row - first.to(tl.int32))[:, None]
    total, found = tl.zeros(inside.shape, tl.float32), tuples.nothing()
    for tap in tl.static_range(KERNEL):
        source = at + tap - (KERNEL - 1)
        value = load_channels(
            first[:, None] + source, channel[None, :], inside & (source >= 0), q, k, v, q_row, k_row, v_row, q_head,
            k_head, v_head, KEYS, KEY_DIM, GROUP,
        )  # fmt: skip
        if tap < KERNEL - 1:
            old = state[:, None] + (at + tap) * CHANNELS + channel[None, :]
            had = inside & (source < 0) & (before > 0)[:, None]
            value = tl.where(source >= 0, value, tl.load(old, had, other=0.0))
        taps = tl.load(weight + channel * KERNEL + tap, channel < CHANNELS, other=0.0).to(tl.float32)
        total += value.to(tl.float32) * taps[None, :]
        found = tuples.append(found, value)
    if WRITES:
        place = block_table + request.to(tl.int64) * table_stride + before // block_size
        new = cache + tl.load(place, there, other=0).to(tl.int64) * cache_stride
        for tap in tl.static_range(KERNEL - 1):
            to = new[:, None] + tap * CHANNELS + channel[None, :]
            tl.store(to, found[tap + 1].to(cache.dtype.element_ty), inside)
    values = activated(total, bias, channel[None, :], inside, HAS_BIAS)
    tl.store(out + row.to(tl.int64)[:, None] * CHANNELS + channel[None, :], values.to(out.dtype.element_ty), inside)


def one_each(step: CacheStep) -> bool:
    """Whether no request of a step has more than one token. Then no program of the convolution reads a state that
    another writes."""
    return step.max_query_len == 1 and step.tails is None


def convolve(channels: Channels, weight: Tensor, bias: Tensor | None, cache: Tensor, step: CacheStep) -> Tensor:
    """``causal_conv`` with SiLU, ``[tokens, channels]``; states are written where :func:`one_each` says so. Rows of
    padding may hold anything."""
    count, rows = channels.count, _FEW_ROWS if step.num_tokens < _MANY_TOKENS else _ROWS
    out = torch.empty(step.num_tokens, count, dtype=channels.v.dtype, device=channels.v.device)
    grid = (triton.cdiv(step.num_tokens, rows), triton.cdiv(count, _COLUMNS))
    convolve_kernel[grid](
        *channels.arguments(), weight, weight if bias is None else bias, cache, step.query_start, step.seq_lens,
        step.block_table, out, step.num_tokens, step.num_requests - 1, cache.stride(0), step.block_table.stride(0),
        step.block_size, CHANNELS=count, **channels.sizes(), KERNEL=weight.shape[1], HAS_BIAS=bias is not None,
        STEPS=request_room(step.num_requests).bit_length(), ROWS=rows, COLUMNS=_COLUMNS, WRITES=one_each(step),
        num_warps=4, **pdl.options(),
    )  # fmt: skip
    return out
