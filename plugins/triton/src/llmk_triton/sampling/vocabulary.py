"""Splits rows of logits into parts, one per program. The split does not depend on the number of rows, so results are
batch-invariant."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl

DEPTH, WIDTH = 8, 512
"""The shape of a part in a program: sums over ``DEPTH`` stay within a thread."""
WARPS = 4


def rows_of(logits: Tensor) -> Tensor:
    """``logits`` (``[R, V]``), contiguous except along rows."""
    return logits if logits.stride(1) == 1 else logits.contiguous()


def num_parts(logits: Tensor) -> int:
    """The number of parts of a row."""
    return -(-logits.shape[1] // (DEPTH * WIDTH))


def part_options() -> dict[str, Any]:
    """The launch options of kernels with one program per part of a row."""
    return {"DEPTH": DEPTH, "WIDTH": WIDTH, "num_warps": WARPS, **pdl.options()}


@triton.jit
def load_part(logits, row, part, stride, vocab, DEPTH: tl.constexpr, WIDTH: tl.constexpr):
    """Part ``part`` of a row: float32 ``[DEPTH, WIDTH]``, ``-inf`` beyond the vocabulary; and its token ids."""
    token = part * DEPTH * WIDTH + tl.arange(0, DEPTH)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(logits + row.to(tl.int64) * stride + token, token < vocab, other=float("-inf"))
    return x.to(tl.float32), token


@triton.jit
def order_keys(logits, token):
    """Unique int64 keys: the more likely a token, the greater, and among equal logits the lower id. NaN is greatest, as
    in :func:`torch.argmax`."""
    # Adding zero makes negative zero equal to zero.
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - token)


@triton.jit
def key_logit(key):
    """The logit of a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_token(key):
    """The token id of a key, int32."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def row_peak(peaks, row, parts, PARTS: tl.constexpr):
    """The key of a row's most likely token, from the output of :func:`peak_kernel`."""
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(peaks + row.to(tl.int64) * parts + part, part < parts, other=-(1 << 63)))


@triton.jit
def peak_kernel(logits, peaks, stride, vocab, DEPTH: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    """The key of the most likely token of each part, int64 ``[rows, parts]``. The grid is ``[parts, rows]``."""
    part, row = tl.program_id(0), tl.program_id(1)
    pdl.release(PDL)
    pdl.wait(PDL)
    x, token = load_part(logits, row, part, stride, vocab, DEPTH, WIDTH)
    peak = tl.max(tl.max(order_keys(x, token), axis=0))
    tl.store(peaks + row.to(tl.int64) * tl.num_programs(0) + part, peak)


def find_peaks(logits: Tensor) -> Tensor:
    """Keys of the most likely token of each part of the rows of ``logits`` (:func:`rows_of`), int64 ``[R, parts]``."""
    peaks = torch.empty(logits.shape[0], num_parts(logits), dtype=torch.int64, device=logits.device)
    grid = (peaks.shape[1], peaks.shape[0])
    peak_kernel[grid](logits, peaks, logits.stride(0), logits.shape[1], **part_options())
    return peaks
