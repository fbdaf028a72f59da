"""Lists the work of a step's prompts, on the device and from the true lengths, once for all layers.

A work item is a tile of queries of one request. Those with the most keys come first, so that programs that take turns
(see :func:`llmk_triton.attention.prefill_specialized.prefill_specialized_kernel`) get about as many keys each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk_triton.attention.prefill_schedule import PrefillSchedule

_ITEMS = 32
"""Work items per program."""
_REQUESTS = 64
"""Requests per iteration."""


@dataclass(frozen=True, slots=True)
class WorkList:
    """The output of :func:`list_work_kernel`.

    Attributes:
        items: int32 ``[most, 4]``: of each work item the row of its first query, the number of the request's queries
            from there on, the position of its first query, and the request.
        count: int32 ``[1]``, the number of work items.
    """

    items: Tensor
    count: Tensor


def list_work(step: CacheStep, schedule: PrefillSchedule, *, queries: int, keys: int) -> WorkList:
    """Launches the kernel that lists tiles of ``queries``, ordered by their tiles of ``keys``."""
    requests, device = step.seq_lens.shape[0], step.seq_lens.device
    most = step.slot_mapping.shape[0] // queries + requests
    items = torch.empty(most, 4, dtype=torch.int32, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    list_work_kernel[(triton.cdiv(most, _ITEMS),)](
        items,
        count,
        step.query_start,
        step.seq_lens,
        schedule.starts,
        schedule.parts,
        requests,
        QUERIES=queries,
        KEYS=keys,
        ITEMS=_ITEMS,
        REQUESTS=_REQUESTS,
        num_warps=4,
    )
    return WorkList(items, count)


@triton.jit
def _load_requests(
    query_start, seq_lens, starts, parts, first, num_requests, QUERIES: tl.constexpr, REQUESTS: tl.constexpr
):
    """Of the requests from ``first`` on: which there are, their numbers of work items, queries, and tokens before.

    Requests whose keys are split, or that have no program in the schedule, have no work items here.
    """
    request = first + tl.arange(0, REQUESTS)
    there = request < num_requests
    length = tl.load(query_start + request + 1, there, other=0) - tl.load(query_start + request, there, other=0)
    context = tl.load(seq_lens + request, there, other=0) - length
    scheduled = tl.load(starts + request + 1, there, other=0) > tl.load(starts + request, there, other=0)
    whole = scheduled & (tl.load(parts + request, there, other=0) == 1)
    return request, there, tl.where(whole, tl.cdiv(length, QUERIES), 0), length, context


@triton.jit
def _count_longer(tiles, number, length, context, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """``[items, requests]``: how many of a request's work items have more than ``tiles`` tiles of keys."""
    border = tiles[:, None] * KEYS - context[None, :]
    first = tl.where(border > 0, border // QUERIES, 0)
    return tl.maximum(tl.where(length[None, :] > border, number[None, :] - first, 0), 0)


@triton.jit(do_not_specialize=["num_requests"])
def list_work_kernel(
    items, count, query_start, seq_lens, starts, parts, num_requests,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, ITEMS: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """Writes a :class:`WorkList`; the grid is ``[most / ITEMS]``.

    A program finds its items by their place in the order of requests. Their place in the list follows from counts of
    items with more keys, and with as many, so nothing has to be sorted.
    """
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    total = 0
    owner = tl.zeros([ITEMS], tl.int32)
    before = tl.zeros([ITEMS], tl.int32)
    for first in range(0, num_requests, REQUESTS):
        request, there, number, length, context = _load_requests(
            query_start, seq_lens, starts, parts, first, num_requests, QUERIES, REQUESTS
        )
        until = total + tl.cumsum(number, 0)
        passed = (until[None, :] <= item[:, None]) & there[None, :]
        owner += tl.sum(passed.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(passed, until[None, :], 0), 1))
        total += tl.sum(number, 0)
    exists = item < total
    tile = item - before
    row = tl.load(query_start + owner, exists, other=0)
    own_length = tl.load(query_start + owner + 1, exists, other=0) - row
    own_context = tl.load(seq_lens + owner, exists, other=0) - own_length
    tiles = tl.cdiv(own_context + tl.minimum(own_length, (tile + 1) * QUERIES), KEYS)
    place = tl.zeros([ITEMS], tl.int32)
    for first in range(0, num_requests, REQUESTS):
        request, there, number, length, context = _load_requests(
            query_start, seq_lens, starts, parts, first, num_requests, QUERIES, REQUESTS
        )
        longer = _count_longer(tiles, number, length, context, QUERIES, KEYS)
        as_long = _count_longer(tiles - 1, number, length, context, QUERIES, KEYS) - longer
        # Of one request, items with as many keys are neighbors, ahead of those with more.
        ahead = number[None, :] - longer - as_long
        earlier = tl.where(request[None, :] < owner[:, None], as_long, 0)
        place += tl.sum(longer + tl.where(request[None, :] == owner[:, None], tile[:, None] - ahead, earlier), 1)
    at = items + 4 * place
    tl.store(at, row + tile * QUERIES, exists)
    tl.store(at + 1, own_length - tile * QUERIES, exists)
    tl.store(at + 2, own_context + tile * QUERIES, exists)
    tl.store(at + 3, owner, exists)
    if tl.program_id(0) == 0:
        tl.store(count, total)
