"""Schedules the split-K work of a decode step, on the device and from the true sequence lengths, once for all layers.

Keys are split between as many programs as the device runs at a time, by the true lengths only, so bounds and padding
cost nothing. Neighbouring requests whose sequences start with the same blocks form a *team*: one program reads a shared
block for all of them (as in arXiv:2402.05099 and 2402.15220, but shared prefixes are found by comparing block tables).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api.cache import CacheStep

FIELDS = tl.constexpr(8)
"""Integers per work item."""

_LEAST_SHARED = 512
"""Least number of tokens that a team shares: for fewer, merging takes longer than the saved reads."""

_TOGETHER = 256
"""Requests per block of the kernel's loop, so that the kernel is not compiled again for each number of requests."""

_MIXED = 1024
"""The same for larger steps with prompts: a warm-up runs only the largest of these."""

_COLUMNS = 16
"""Columns of the block table that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The output of :func:`schedule_kernel`.

    Attributes:
        items: int32 ``[1 + most, 8]``. Row 0 holds the number of items. Every other row is a work item, which one
            program per K/V head computes: first row in the step, first request, first key (aligned to a tile), end of
            the keys, first key that is visible, index of this split, number of splits of its requests, and number of
            requests that share the item.
        spans: int32 ``[requests + 1]``, cumulative number of splits of the requests before.
        arrived: int32 ``[requests, kv_heads]``, counters of finished splits, zeros.
        programs: programs per K/V head among which the items are distributed: no more than the device runs at a time.
        parts: upper bound of the number of splits.
    """

    items: Tensor
    spans: Tensor
    arrived: Tensor
    programs: int
    parts: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The scheduling rule.

    Attributes:
        slots: programs per K/V head that the device runs at a time.
        tile: keys of a tile.
        least: least number of tiles per program.
        team: requests that share a program; a power of two; 1: none.
        window: sliding window: keys visible to a query; 0: all.
        chunked: whether those of its chunk of ``window`` keys are visible instead.
    """

    slots: int
    tile: int
    least: int
    team: int
    window: int
    chunked: bool = False

    def __call__(self, step: CacheStep, kv_heads: int, *, mixed: bool) -> Schedule:
        """Launches the scheduling kernel. With ``mixed``, requests with several queries, or none, get no work item.
        Without, request ``i`` is row ``i`` and always gets an item, which is empty if it has no query."""
        requests, device = step.seq_lens.shape[0], step.seq_lens.device
        tiles = triton.cdiv(step.max_seq_len, self.tile)
        tiles = min(tiles, triton.cdiv(self.window, self.tile) + 1) if self.window else tiles
        splits = min(self.slots, requests * triton.cdiv(tiles, self.least))
        most = requests + requests // self.team * (self.team > 1) + splits
        items = torch.empty(1 + most, FIELDS.value, dtype=torch.int32, device=device)
        spans = torch.empty(requests + 1, dtype=torch.int32, device=device)
        arrived = torch.empty(requests, kv_heads, dtype=torch.int32, device=device)
        # Not launched with PDL: this kernel and those before it must have finished when decode_kernel starts, which
        # does not wait.
        schedule_kernel[(1,)](
            items,
            spans,
            arrived,
            step.query_start,
            step.seq_lens,
            step.block_table,
            requests,
            min(requests, step.slot_mapping.shape[0]),
            step.block_table.stride(0),
            self.slots,
            self.least,
            TILE=self.tile,
            LEAST_SHARED=_LEAST_SHARED,
            TEAM=self.team,
            WINDOW=self.window,
            CHUNKED=self.chunked,
            KV_HEADS=kv_heads,
            BLOCK_SIZE=step.block_size,
            MIXED=mixed,
            REQUESTS=room(requests, mixed=mixed),
            COLUMNS=_COLUMNS,
            num_warps=8,
        )
        return Schedule(items, spans, arrived, min(most, self.slots), self.team * most)


@triton.jit
def _least_of_team(x, TEAM: tl.constexpr):
    """The least ``x`` of every team, for each of its members."""
    teams: tl.constexpr = x.shape[0] // TEAM
    least = tl.min(tl.reshape(x, [teams, TEAM]), axis=1)
    return tl.reshape(tl.broadcast_to(least[:, None], [teams, TEAM]), [x.shape[0]])


@triton.jit
def _shared_blocks(block_table, request, limit, stride_table, least, TEAM: tl.constexpr, COLUMNS: tl.constexpr):
    """How many leading blocks, up to ``limit``, the members of each team have in common; the search is skipped if
    ``limit`` is below ``least``."""
    limit = _least_of_team(limit, TEAM)
    mine = block_table + request.to(tl.int64) * stride_table
    leaders = block_table + (request // TEAM * TEAM).to(tl.int64) * stride_table
    shared = tl.zeros_like(request)
    equal = (limit >= least).to(tl.int32)
    start = 0
    while tl.max(equal) > 0:
        column = start + tl.arange(0, COLUMNS)
        there = (equal > 0)[:, None] & (column[None, :] < limit[:, None])
        own = tl.load(mine[:, None] + column[None, :], there, other=0)
        first = tl.load(leaders[:, None] + column[None, :], there, other=1)
        end = tl.min(tl.where(own == first, start + COLUMNS, column[None, :]), axis=1)
        end = _least_of_team(end, TEAM)
        shared = tl.where(equal > 0, end, shared)
        start += COLUMNS
        equal = (end == start).to(tl.int32) * equal
    return shared


def room(requests: int, *, mixed: bool) -> int:
    """The power of two that the kernel is compiled for."""
    found: int = max(_TOGETHER, triton.next_power_of_2(requests))
    return max(found, _MIXED) if mixed and found > _TOGETHER else found


@triton.jit(do_not_specialize=["num_requests", "num_rows", "stride_table", "slots", "least"])
def schedule_kernel(
    items, spans, arrived, query_start, seq_lens, block_table, num_requests, num_rows, stride_table,
    slots, least, TILE: tl.constexpr, LEAST_SHARED: tl.constexpr, TEAM: tl.constexpr,
    WINDOW: tl.constexpr, CHUNKED: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, MIXED: tl.constexpr,
    REQUESTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program, which writes a :class:`Schedule` according to a :class:`Rule`; ``REQUESTS >= num_requests``."""
    request = tl.arange(0, REQUESTS)
    there = request < num_requests
    row = tl.load(query_start + request, there, other=0)
    decodes = there & (tl.load(query_start + request + 1, there, other=0) == row + 1)
    seq_len = tl.load(seq_lens + request, decodes, other=0)
    works = decodes
    if not MIXED:
        works = request < num_rows
        row = request
    seen = tl.zeros_like(seq_len)
    if CHUNKED:
        seen = tl.maximum(seq_len - 1, 0) // WINDOW * WINDOW
    elif WINDOW > 0:
        seen = tl.maximum(seq_len - WINDOW, 0)
    low = seen // TILE
    shared = tl.zeros_like(seq_len)
    if TEAM > 1:
        limit = tl.where(decodes, (seq_len - 1) // BLOCK_SIZE, 0)
        blocks = _shared_blocks(block_table, request, limit, stride_table, LEAST_SHARED // BLOCK_SIZE, TEAM, COLUMNS)
        shared = blocks * BLOCK_SIZE // TILE
        shared = tl.where(shared * TILE >= LEAST_SHARED, shared, 0)
        low += shared
    own = tl.where(works, tl.maximum(tl.cdiv(seq_len, TILE) - low, 1), 0)
    leads = (request % TEAM == 0).to(tl.int32)
    each = tl.maximum(tl.cdiv(tl.sum(own + shared * leads), slots), least)
    own_parts = tl.cdiv(own, each)
    team_parts = tl.cdiv(shared, each)
    # All splits of one request have the same size, up to whole tiles.
    own_each = tl.cdiv(own, tl.maximum(own_parts, 1))
    team_each = tl.cdiv(shared, tl.maximum(team_parts, 1))
    parts = own_parts + team_parts
    count = own_parts + team_parts * leads
    place = items + (1 + tl.cumsum(count, axis=0) - count) * FIELDS
    tl.store(items, tl.sum(count))
    tl.store(spans, 0)
    tl.store(spans + 1 + request, tl.cumsum(parts, axis=0), there)
    for kv_head in range(KV_HEADS):
        tl.store(arrived + request * KV_HEADS + kv_head, 0, there)
    for i in range(tl.max(count)):
        teams = i < team_parts * leads
        part = tl.where(teams, i, i - team_parts * leads)
        size = tl.where(teams, team_each, own_each)
        first = tl.where(teams, 0, low) + part * size
        end = tl.where(teams, tl.minimum((first + size), shared) * TILE, tl.minimum((first + size) * TILE, seq_len))
        here = works & (i < count)
        at = place + i * FIELDS
        tl.store(at, row, here)
        tl.store(at + 1, request, here)
        tl.store(at + 2, first * TILE, here)
        tl.store(at + 3, end, here)
        tl.store(at + 4, seen, here)
        tl.store(at + 5, tl.where(teams, part, part + team_parts), here)
        tl.store(at + 6, parts, here)
        tl.store(at + 7, tl.where(teams, TEAM, 1), here)
