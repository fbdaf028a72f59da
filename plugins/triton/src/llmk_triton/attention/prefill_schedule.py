"""Schedules the work of requests with several queries, on the device and from the true lengths, once for all layers.

The queries of a request are computed tile by tile. Where the tiles of a step are too few for the device, as with a
small part of a long prompt, the keys of a tile are split between programs too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk_triton.attention.decode_schedule import room

LEAST_KEYS = 1024
"""Least number of keys per program: for fewer, merging takes longer than splitting saves."""


@dataclass(frozen=True, slots=True)
class PrefillSchedule:
    """The output of :func:`prefill_schedule_kernel`.

    Attributes:
        starts: int32 ``[requests + 1]``, cumulative number of programs of the requests before.
        parts: int32 ``[requests]``, programs between which the keys of each of the request's tiles are split.
        places: int32 ``[requests]``, where the partial results of the request start, if its keys are split.
        arrived: int32 ``[most, kv_heads]``, counters of finished parts, zeros.
        most: upper bound of the number of partial results.
    """

    starts: Tensor
    parts: Tensor
    places: Tensor
    arrived: Tensor
    most: int


def schedule_prefill(
    step: CacheStep, kv_heads: int, *, queries: int, slots: int, window: int, skip_decode: bool, split: bool
) -> PrefillSchedule:
    """Launches the scheduling kernel.

    Args:
        queries: of a tile.
        slots: programs per K/V head that the device runs at a time.
        window: sliding window: keys visible to a query; 0: all.
        skip_decode: requests with one query get no program.
        split: whether keys may be split.
    """
    requests, device = step.seq_lens.shape[0], step.seq_lens.device
    # Tensors of their own, as views would be aligned in some steps and not in others: kernels would be compiled twice.
    sizes = ((requests + 1,), (requests,), (requests,), (slots, kv_heads))
    starts, parts, places, arrived = (torch.empty(size, dtype=torch.int32, device=device) for size in sizes)
    prefill_schedule_kernel[(1,)](
        starts,
        parts,
        places,
        arrived,
        step.query_start,
        step.seq_lens,
        requests,
        slots,
        QUERIES=queries,
        WINDOW=window,
        COUNTERS=triton.next_power_of_2(slots * kv_heads),
        KV_HEADS=kv_heads,
        SKIP_DECODE=skip_decode,
        SPLIT=split,
        LEAST=LEAST_KEYS,
        REQUESTS=room(requests, mixed=True),
        num_warps=4,
    )
    return PrefillSchedule(starts, parts, places, arrived, slots)


@triton.jit(do_not_specialize=["num_requests", "slots"])
def prefill_schedule_kernel(
    starts, parts, places, arrived, query_start, seq_lens, num_requests, slots,
    QUERIES: tl.constexpr, WINDOW: tl.constexpr, COUNTERS: tl.constexpr, KV_HEADS: tl.constexpr,
    SKIP_DECODE: tl.constexpr, SPLIT: tl.constexpr, LEAST: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """One program, which writes a :class:`PrefillSchedule`; ``REQUESTS >= num_requests``.

    Each program gets about as many pairs of a tile and a key, so the parts of split tiles are at most ``slots``.
    """
    request = tl.arange(0, REQUESTS)
    there = request < num_requests
    length = tl.load(query_start + request + 1, there, other=0) - tl.load(query_start + request, there, other=0)
    if SKIP_DECODE:
        length = tl.where(length == 1, 0, length)
    tiles = tl.cdiv(length, QUERIES)
    count = tl.full([REQUESTS], 1, tl.int32)
    if SPLIT:
        keys = tl.load(seq_lens + request, there, other=0)
        if WINDOW > 0:
            keys = tl.minimum(keys, WINDOW + QUERIES)
        each = tl.maximum(tl.cdiv(tl.sum(tiles * keys), slots), LEAST)
        count = tl.maximum(keys // each, 1)
    programs = tiles * count
    partial = tl.where(count > 1, programs, 0)
    tl.store(starts, 0)
    tl.store(starts + 1 + request, tl.cumsum(programs, axis=0), there)
    tl.store(parts + request, count, there)
    tl.store(places + request, tl.cumsum(partial, axis=0) - partial, there)
    counter = tl.arange(0, COUNTERS)
    tl.store(arrived + counter, 0, counter < slots * KV_HEADS)
