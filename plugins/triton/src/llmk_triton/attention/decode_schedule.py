"""Who does what in the attention of a decode step, worked out on the device from the true lengths, once for all layers.

Keys are divided among as many programs as the device runs at a time, by lengths alone: bounds and padding cost nothing.
Neighbours whose tokens begin in the same blocks form a *team*, one program of which reads such a block for all of them
(as in arXiv:2402.05099 and 2402.15220, but found by comparing block tables).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api.cache import CacheStep

FIELDS = tl.constexpr(8)
"""Integers of an item."""

_LEAST_SHARED = 512
"""Tokens that a team shares at least: for fewer, its results take longer to merge than keys to read."""

_TOGETHER = 256
"""Requests that are looked at together, so that the number of requests gives no kernels of their own."""

_COLUMNS = 16
"""Blocks of every request that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What :func:`schedule_kernel` writes.

    Attributes:
        items: int32 ``[1 + most, 8]``: in row 0 how many items there are, in each other row the work of one program
            per key head: the first row of the step, the first request, where its keys begin (at a tile) and end, the
            first of them that is seen, which part of its requests' keys these are, of how many, and how many requests
            share it.
        spans: int32 ``[requests + 1]``, how many parts there are of all the requests before.
        arrived: int32 ``[requests, kv_heads]``, zeros.
        programs: how many per key head share out the items: no more than the device runs at a time.
        parts: upper bound of parts in all.
    """

    items: Tensor
    spans: Tensor
    arrived: Tensor
    programs: int
    parts: int


@dataclass(frozen=True, slots=True)
class Rule:
    """How work is divided.

    Attributes:
        slots: programs per key head that the device runs at a time.
        tile: keys of a tile.
        least: tiles that a program takes at least.
        team: requests that share a program; a power of two, 1: none do.
        window: keys that a query sees; 0: all.
    """

    slots: int
    tile: int
    least: int
    team: int
    window: int

    def __call__(self, step: CacheStep, kv_heads: int, *, mixed: bool) -> Schedule:
        """Launches the kernel. With ``mixed`` requests with several queries, or none, get no item; without, request
        ``i`` is row ``i``, and gets one whose keys are none where it has no query."""
        requests, device = step.seq_lens.shape[0], step.seq_lens.device
        tiles = triton.cdiv(step.max_seq_len, self.tile)
        tiles = min(tiles, triton.cdiv(self.window, self.tile) + 1) if self.window else tiles
        splits = min(self.slots, requests * triton.cdiv(tiles, self.least))
        most = requests + requests // self.team * (self.team > 1) + splits
        items = torch.empty(1 + most, FIELDS.value, dtype=torch.int32, device=device)
        spans = torch.empty(requests + 1, dtype=torch.int32, device=device)
        arrived = torch.empty(requests, kv_heads, dtype=torch.int32, device=device)
        # Without dependent launch: what comes before, and this, has ended when the step's layers start (decode_kernel).
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
            KV_HEADS=kv_heads,
            BLOCK_SIZE=step.block_size,
            MIXED=mixed,
            REQUESTS=max(_TOGETHER, triton.next_power_of_2(requests)),
            COLUMNS=_COLUMNS,
            num_warps=8,
        )
        return Schedule(items, spans, arrived, min(most, self.slots), self.team * most)


@triton.jit
def _least_of_team(x, TEAM: tl.constexpr):
    """Of every team the least of ``x``, for all its members."""
    teams: tl.constexpr = x.shape[0] // TEAM
    least = tl.min(tl.reshape(x, [teams, TEAM]), axis=1)
    return tl.reshape(tl.broadcast_to(least[:, None], [teams, TEAM]), [x.shape[0]])


@triton.jit
def _shared_blocks(block_table, request, limit, stride_table, least, TEAM: tl.constexpr, COLUMNS: tl.constexpr):
    """How many blocks, up to ``limit``, the members of each team have in common from the first on; ``least`` are worth
    looking for."""
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


@triton.jit(do_not_specialize=["num_requests", "num_rows", "stride_table", "slots", "least"])
def schedule_kernel(
    items, spans, arrived, query_start, seq_lens, block_table, num_requests, num_rows, stride_table,
    slots, least, TILE: tl.constexpr, LEAST_SHARED: tl.constexpr, TEAM: tl.constexpr,
    WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, MIXED: tl.constexpr,
    REQUESTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program, which writes a :class:`Schedule` by a :class:`Rule`; ``REQUESTS >= num_requests``."""
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
    if WINDOW > 0:
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
    # Parts of one request are of one size, as nearly as tiles allow.
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
