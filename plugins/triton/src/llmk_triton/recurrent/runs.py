"""What a step computes of each request, and where its states are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep

_FEW, _MANY = 32, 1024


def request_room(requests: int) -> int:
    """Requests for which kernels have room that search among a step's: one of few powers of two, for each of which they
    are compiled."""
    return _FEW if requests <= _FEW else max(_MANY, triton.next_power_of_2(requests))


@triton.jit
def run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS: tl.constexpr):
    """A request's first row in the step, how many it has, the tokens before them, and how many of its rows are no
    drafts."""
    first = tl.load(query_start + request)
    count = tl.load(query_start + request + 1) - first
    before = tl.load(seq_lens + request) - count
    known = count
    if HAS_DRAFTS:
        known = count - tl.load(num_drafts + request).to(tl.int32)
    return first.to(tl.int64), count, before, known


def with_padding(step: CacheStep, columns: int, like: Tensor) -> Tensor:
    """``[tokens, columns]`` for the results of a step, of which those of padding are zeros, if kernels call
    :func:`clear_padding` for each request."""
    alike = step.num_tokens == step.num_requests
    make = torch.empty if alike else torch.zeros
    return make(step.num_tokens, columns, dtype=like.dtype, device=like.device)


@triton.jit
def clear_padding(out, query_start, column, inside, COLUMNS: tl.constexpr):
    """Clears some columns of the row that has the number of the program's request (axis 1 of the grid), if it is one of
    padding."""
    request = tl.program_id(1)
    if request >= tl.load(query_start + tl.num_programs(1)):
        place = out + request.to(tl.int64) * COLUMNS + column
        tl.store(place, tl.zeros(column.shape, out.dtype.element_ty), inside)


@triton.jit
def block_before(block_table, table_stride, request, before, block_size):
    """The block of a request's state before the step (int64); 0 for a new request, which has none."""
    place = block_table + request.to(tl.int64) * table_stride + tl.maximum(before - 1, 0) // block_size
    return tl.load(place, before > 0, other=0).to(tl.int64)


@triton.jit
def block_after(block_table, table_stride, request, length, block_size):
    """The block of a request's state after ``length`` tokens (int64)."""
    return tl.load(block_table + request.to(tl.int64) * table_stride + (length - 1) // block_size).to(tl.int64)


@triton.jit
def is_kept(after, before, known, block_size):
    """Whether the state after ``after`` of the step's tokens is stored: the last one before drafts, and those that fill
    a block."""
    return (after == known) | ((after < known) & ((before + after) % block_size == 0))


@triton.jit
def request_of(query_start, row, last, STEPS: tl.constexpr):
    """The request of each of ``row``, by bisection in ``STEPS`` steps; ``last`` is the last request."""
    low, high = row * 0, row * 0 + last
    for _ in tl.static_range(STEPS):
        middle = (low + high + 1) // 2
        starts_before = tl.load(query_start + middle) <= row
        low, high = tl.where(starts_before, middle, low), tl.where(starts_before, high, middle - 1)
    return low


@triton.jit
def softplus(x):
    """``log(1 + exp(x))`` of float32, as precise for small results as for large ones."""
    power = tl.exp(-tl.abs(x))
    rounded = 1.0 + power
    # What rounding took from the argument of the logarithm is in the quotient.
    rest = tl.where(rounded == 1.0, power, tl.log(rounded) * (power / tl.maximum(rounded - 1.0, 1e-30)))
    return tl.maximum(x, 0.0) + rest


@triton.jit
def log_decay(given, rate, bias, BOUND: tl.constexpr):
    """What a head's input ``given`` makes of its decay's logarithm, float32; ``rate`` is negative. ``BOUND`` 0: it has
    none."""
    total = given.to(tl.float32) + bias
    if BOUND == 0.0:
        found = rate * softplus(total)
    else:
        found = BOUND * tl.sigmoid(-rate * total)
    return found


@triton.jit
def rounded(x, like):
    """``x`` rounded to the dtype that ``like`` points to, as float32."""
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _chunk_of(position, block_size, CHUNK: tl.constexpr):
    """The number of the chunk of a position: those of a block start with it, so that blocks end where chunks do."""
    return position // block_size * tl.cdiv(block_size, CHUNK) + position % block_size // CHUNK


@triton.jit
def num_chunks(count, before, known, block_size, CHUNK: tl.constexpr):
    """In how many chunks a request's tokens are computed; drafts are in chunks of their own."""
    first = _chunk_of(before, block_size, CHUNK)
    settled = _chunk_of(before + tl.maximum(known - 1, 0), block_size, CHUNK) + 1 - first
    drafted = _chunk_of(before + count - 1, block_size, CHUNK) + 1 - _chunk_of(before + known, block_size, CHUNK)
    return settled + tl.where(known < count, drafted, 0)


@triton.jit
def chunk_bounds(index, count, before, known, block_size, CHUNK: tl.constexpr):
    """Of a request's tokens in the step, the first one of a chunk, and the one after its last."""
    chunk = _chunk_of(before, block_size, CHUNK) + index
    settled = _chunk_of(before + tl.maximum(known - 1, 0), block_size, CHUNK) + 1
    is_draft = chunk >= settled
    chunk += tl.where(is_draft, _chunk_of(before + known, block_size, CHUNK) - settled, 0)
    low, high = tl.where(is_draft, known, 0), tl.where(is_draft, count, known)
    per_block = tl.cdiv(block_size, CHUNK)
    place = chunk % per_block * CHUNK
    start = chunk // per_block * block_size - before
    return tl.maximum(start + place, low), tl.minimum(start + tl.minimum(block_size, place + CHUNK), high)


@triton.jit
def chunks_of_requests(
    query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS: tl.constexpr,
    CHUNK: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """How many chunks each request has that has more than ``longest`` tokens; others have none."""
    request = tl.arange(0, REQUESTS)
    there = request < num_requests
    first = tl.load(query_start + request, there, other=0)
    count = tl.load(query_start + request + 1, there, other=0) - first
    before = tl.load(seq_lens + request, there, other=0) - count
    known = count
    if HAS_DRAFTS:
        known -= tl.load(num_drafts + request, there, other=0).to(tl.int32)
    return tl.where(count > longest, num_chunks(count, before, known, block_size, CHUNK), 0)


@triton.jit
def chunk_in_step(
    number, query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS: tl.constexpr,
    CHUNK: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """Of all chunks of requests with more than ``longest`` tokens, the request of the one with a number, and its number
    in there; the request is ``REQUESTS`` where there are not so many."""
    chunks = chunks_of_requests(
        query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS, CHUNK, REQUESTS
    )
    ends = tl.cumsum(chunks, 0)
    passed = ends <= number
    found = tl.sum(passed.to(tl.int32), 0)
    return found, number - tl.sum(tl.where(passed, chunks, 0), 0)
