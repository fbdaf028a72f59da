"""Attention of prompts on Hopper GPUs, with specialized warps: one loads tiles by TMA, two groups of warps compute.

The structure is FlashAttention-3's (arXiv:2407.08608): while the values of one tile are multiplied, the logits of the
next are too, and their softmax is computed. A program takes several work items, so that the loads of the next item
overlap the end of the one before. Written in Gluon, Triton's language for kernels that name their layouts and barriers.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from llmk.api.query import AttentionQuery
from llmk_triton.attention.work_list import WorkList
from llmk_triton.attention_support import rows_per_token
from llmk_triton.common.targets import SpecializedTile

_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # before Triton 3.9

_HALF = gl.constexpr(64)
"""Rows per group of warps, and columns that one TMA copy can swizzle."""
_LOG2E = gl.constexpr(1.4426950408889634)


def attend(
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    sinks: Tensor,
    work: WorkList,
    block_table: Tensor,
    facts: AttentionQuery,
    tile: SpecializedTile,
    cores: int,
) -> None:
    """Launches :func:`prefill_specialized_kernel` on ``cores`` multiprocessors.

    Args:
        out: ``[tokens, heads, head_dim]``, contiguous; rows of queries that are in no work item stay as they are.
        query: ``[tokens, heads, head_dim]``, rows contiguous.
        cache: ``[num_blocks, 2, kv_heads, block_size, head_dim]`` of the queries' dtype; blocks are contiguous.
        sinks: ``[heads]``, not read where the query has none.
    """
    _, _, kv_heads, block_size, size = cache.shape
    group = facts.num_heads // kv_heads
    rows = rows_per_token(group)
    layout = gl.NVMMASharedLayout(128, 16, 3)
    blocks = TensorDescriptor.from_tensor(cache.flatten(1, 3), [1, block_size, 64], layout)
    queries = TensorDescriptor.from_tensor(query, [64 // rows, rows, 64], layout)
    prefill_specialized_kernel[(cores,)](
        out,
        queries,
        blocks,
        sinks,
        work.items,
        work.count,
        block_table,
        block_table.stride(0),
        SCALE=facts.scale,
        SOFTCAP=facts.softcap or 0.0,
        WINDOW=facts.sliding_window or 0,
        HAS_SINKS=facts.sinks,
        KV_HEADS=kv_heads,
        GROUP=group,
        PADDED=rows,
        SIZE=size,
        BLOCK_SIZE=block_size,
        TILE=tile.keys,
        STAGES=tile.stages,
        QUERY_STAGES=tile.query_stages,
        LOADING=tile.loading,
        COMPUTING=tile.computing,
        num_warps=4,
    )


if hasattr(gl.shared_memory_descriptor, "reinterpret"):

    @gluon.jit
    def _as_tiles(parts, NUMBER: gl.constexpr, TILE_ROWS: gl.constexpr, SIZE: gl.constexpr, layout: gl.constexpr):
        """Parts that lie one after the other, as tiles: a swizzled tile is one panel of 64 columns after the other."""
        return parts.reinterpret(parts.dtype, [NUMBER, TILE_ROWS, SIZE], layout)

else:  # before Triton 3.9

    @gluon.jit
    def _as_tiles(parts, NUMBER: gl.constexpr, TILE_ROWS: gl.constexpr, SIZE: gl.constexpr, layout: gl.constexpr):
        """As above."""
        return parts._reinterpret(parts.dtype, [NUMBER, TILE_ROWS, SIZE], layout)


@gluon.jit
def _count_turns(limit):
    """How many work items times K/V heads, of ``limit``, are this program's."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    rounds = limit // programs
    place = gl.where(rounds % 2 == 0, program, programs - 1 - program)
    return rounds + (place < limit % programs).to(gl.int32)


@gluon.jit
def _find_turn(turn):
    """The index of this program's work item times K/V head. Every second round goes backwards, so that the program that
    gets the most keys in one round gets the fewest in the next."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)


@gluon.jit
def _find_tiles(position, left, QUERIES: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr):
    """The first token that the queries of an item see, the first tile with such, and the number of tiles."""
    low = 0
    if WINDOW > 0:
        low = gl.maximum(0, position - WINDOW + 1)
    first = low // TILE
    return low, first, (position + gl.minimum(left, QUERIES) + TILE - 1) // TILE - first


@gluon.jit
def _load(
    queries, blocks, query_parts, key_parts, value_parts, barriers, items, limit, block_table, stride_table,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PADDED: gl.constexpr, SIZE: gl.constexpr, WINDOW: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, QUERY_STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp: queries, keys and values of this program's work items; of keys, the last tile first.

    A part is what one copy loads: 64 columns of a block, or of half of an item's queries.
    """
    query_full, query_empty, key_full, key_empty, value_full, value_empty = barriers
    BLOCKS: gl.constexpr = TILE // BLOCK_SIZE
    PANELS: gl.constexpr = SIZE // _HALF
    BYTES: gl.constexpr = TILE * SIZE * 2
    QUERIES: gl.constexpr = 2 * _HALF // PADDED
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    value_blocks = _as_tiles(value_parts, STAGES * PANELS * BLOCKS, BLOCK_SIZE, _HALF, gl.NVMMASharedLayout(128, 16, 2))
    offsets = gl.arange(0, BLOCK_SIZE, gl.SliceLayout(1, layout))
    num_tiles = 0
    num_partial = 0
    for turn in range(_count_turns(limit)):
        index = _find_turn(turn)
        item, kv_head = items + index // KV_HEADS * 4, index % KV_HEADS
        row, left, position = gl.load(item), gl.load(item + 1), gl.load(item + 2)
        table = block_table + gl.load(item + 3).to(gl.int64) * stride_table
        seq_len = position + left
        low, first, tiles = _find_tiles(position, left, QUERIES, TILE, WINDOW)
        place = turn % QUERY_STAGES
        mbarrier.wait(query_empty.index(place), (turn // QUERY_STAGES & 1) ^ 1)
        mbarrier.expect(query_full.index(place), 2 * _HALF * SIZE * 2)
        for half in gl.static_range(2):
            for panel in gl.static_range(PANELS):
                _copy(
                    queries, [row + half * (QUERIES // 2), kv_head * GROUP, panel * _HALF], query_full.index(place),
                    query_parts.index((2 * place + half) * PANELS + panel),
                )  # fmt: skip
        # Rows of a block are [K or V, K/V head, token].
        head = kv_head * BLOCK_SIZE
        for number in range(tiles):
            tile = first + tiles - 1 - number
            stage, phase = num_tiles % STAGES, num_tiles // STAGES & 1
            num_tiles += 1
            ids = gl.tuple(())
            for block in gl.static_range(BLOCKS):
                start = tile * TILE + block * BLOCK_SIZE
                known = (start < seq_len) & (start + BLOCK_SIZE > low)
                ids = ids + gl.tuple((gl.load(table + tile * BLOCKS + block, known, other=0),))
            mbarrier.wait(key_empty.index(stage), phase ^ 1)
            mbarrier.expect(key_full.index(stage), BYTES)
            for block in gl.static_range(BLOCKS):
                for panel in gl.static_range(PANELS):
                    _copy(
                        blocks, [ids[block], head, panel * _HALF], key_full.index(stage),
                        key_parts.index((stage * PANELS + panel) * BLOCKS + block),
                    )  # fmt: skip
            mbarrier.wait(value_empty.index(stage), phase ^ 1)
            partial = (tile * TILE + TILE > seq_len) | (tile * TILE < low)
            # The last barrier is the loading warp's own.
            arrives = value_full.index(gl.where(partial, STAGES, stage))
            mbarrier.expect(arrives, BYTES)
            for block in gl.static_range(BLOCKS):
                for panel in gl.static_range(PANELS):
                    _copy(
                        blocks, [ids[block], KV_HEADS * BLOCK_SIZE + head, panel * _HALF], arrives,
                        value_parts.index((stage * PANELS + panel) * BLOCKS + block),
                    )  # fmt: skip
            if partial:
                mbarrier.wait(arrives, num_partial & 1)
                num_partial += 1
                # What no query sees has a weight of 0, but may be NaN where no sequence has written.
                for part in range(PANELS * BLOCKS):
                    token = tile * TILE + part % BLOCKS * BLOCK_SIZE + offsets
                    inside = ((token < seq_len) & (token >= low))[:, None]
                    values = value_blocks.index(stage * PANELS * BLOCKS + part)
                    loaded_values = values.load(layout)
                    values.store(gl.where(inside, loaded_values, gl.zeros_like(loaded_values)))
                fence_async_shared()
                mbarrier.arrive(value_full.index(stage), count=1)


@gluon.jit
def _softmax(
    logits, peak, total, position, start, MASKED: gl.constexpr, SCALE: gl.constexpr, SOFTCAP: gl.constexpr,
    WINDOW: gl.constexpr, TILE: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """One step of the online softmax, in units of ``log2(e)``: the weights of a tile, and the factor for what has been
    summed so far."""
    scale: gl.constexpr = _LOG2E if SOFTCAP > 0 else SCALE * _LOG2E
    if SOFTCAP > 0:
        # tanh(y) is 2 * sigmoid(2 * y) - 1.
        logits = SOFTCAP * (2.0 / (1.0 + gl.exp2(-2.0 * SCALE / SOFTCAP * _LOG2E * logits)) - 1.0)
    if MASKED:
        token = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        seen = token[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (token[None, :] > position[:, None] - WINDOW)
        logits = gl.where(seen, logits, float("-inf"))
    new_peak = gl.maximum(peak, gl.max(logits, 1) * scale)
    anchor = new_peak
    if MASKED:  # for rows that have seen no key so far
        anchor = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(logits * scale - anchor[:, None])
    shrink = gl.exp2(peak - anchor)
    return weights, shrink, new_peak, total * shrink + gl.sum(weights, 1)


@gluon.jit
def _advance(
    q, key_tiles, value_tiles, barriers, number, acc, weights, peak, total, position, start,
    MASKED: gl.constexpr, SCALE: gl.constexpr, SOFTCAP: gl.constexpr, WINDOW: gl.constexpr, TILE: gl.constexpr,
    STAGES: gl.constexpr, logits_layout: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Starts the logits of tile ``number``, adds the values of the one before while they are computed, and then takes
    the softmax of these logits. Whether there is a mask is constant: with a branch, the GEMMs would wait for each
    other."""
    _query_full, _query_empty, key_full, key_empty, value_full, value_empty = barriers
    before, stage = (number - 1) % STAGES, number % STAGES
    none = gl.zeros([_HALF, TILE], gl.float32, logits_layout)
    mbarrier.wait(key_full.index(stage), number // STAGES & 1)
    logits = warpgroup_mma(q, key_tiles.index(stage).permute((1, 0)), none, use_acc=False, is_async=True)
    mbarrier.wait(value_full.index(before), (number - 1) // STAGES & 1)
    acc = warpgroup_mma(weights, value_tiles.index(before), acc, is_async=True)
    logits = warpgroup_mma_wait(1, deps=[logits])
    mbarrier.arrive(key_empty.index(stage), count=1)
    new_weights, shrink, peak, total = _softmax(
        logits, peak, total, position, start, MASKED, SCALE, SOFTCAP, WINDOW, TILE, logits_layout
    )
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(value_empty.index(before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, layout))[:, None]
    weights = gl.convert_layout(new_weights.to(q.dtype), gl.DotOperandLayout(0, layout, 2))
    return acc, weights, peak, total


@gluon.jit
def _compute(
    out, sinks, query_tiles, key_tiles, value_tiles, barriers, items, limit,
    HALF: gl.constexpr, SCALE: gl.constexpr, SOFTCAP: gl.constexpr, WINDOW: gl.constexpr, HAS_SINKS: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PADDED: gl.constexpr, SIZE: gl.constexpr, TILE: gl.constexpr,
    STAGES: gl.constexpr, QUERY_STAGES: gl.constexpr,
):  # fmt: skip
    """One group of computing warps: half of the rows of each of this program's work items."""
    query_full, query_empty, key_full, key_empty, value_full, value_empty = barriers
    QUERIES: gl.constexpr = 2 * _HALF // PADDED
    logits_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    row = gl.arange(0, _HALF, gl.SliceLayout(1, logits_layout))
    none = gl.zeros([_HALF, TILE], gl.float32, logits_layout)
    num_tiles = 0
    for turn in range(_count_turns(limit)):
        index = _find_turn(turn)
        item, kv_head = items + index // KV_HEADS * 4, index % KV_HEADS
        first_row, left, origin = gl.load(item), gl.load(item + 1), gl.load(item + 2)
        _low, first, tiles = _find_tiles(origin, left, QUERIES, TILE, WINDOW)
        last = first + tiles - 1
        position = origin + HALF * (QUERIES // 2) + row // PADDED
        acc = gl.zeros([_HALF, SIZE], gl.float32, layout)
        peak = gl.full([_HALF], float("-inf"), gl.float32, gl.SliceLayout(1, logits_layout))
        total = gl.zeros([_HALF], gl.float32, gl.SliceLayout(1, logits_layout))
        if HAS_SINKS:
            # A sink is a key without a value.
            peak = gl.load(sinks + kv_head * GROUP + gl.minimum(row % PADDED, GROUP - 1)).to(gl.float32) * _LOG2E
            total += 1.0
        # From ``clear`` to ``again``, counted from the last tile, every row sees every key.
        clear = gl.minimum(gl.maximum(last + 1 - (origin + 1) // TILE, 1), tiles)
        again = tiles
        if WINDOW > 0:
            again = last + 1 - gl.maximum(origin + QUERIES - WINDOW + TILE - 1, 0) // TILE
            again = gl.minimum(gl.maximum(again, clear), tiles)

        place, stage = turn % QUERY_STAGES, num_tiles % STAGES
        q = query_tiles.index(2 * place + HALF)
        mbarrier.wait(query_full.index(place), turn // QUERY_STAGES & 1)
        mbarrier.wait(key_full.index(stage), num_tiles // STAGES & 1)
        logits = warpgroup_mma(q, key_tiles.index(stage).permute((1, 0)), none, use_acc=False, is_async=True)
        logits = warpgroup_mma_wait(0, deps=[logits])
        mbarrier.arrive(key_empty.index(stage), count=1)
        weights, _shrink, peak, total = _softmax(
            logits, peak, total, position, last * TILE, True, SCALE, SOFTCAP, WINDOW, TILE, logits_layout
        )
        weights = gl.convert_layout(weights.to(q.dtype), operand)
        for number in range(1, clear):
            acc, weights, peak, total = _advance(
                q, key_tiles, value_tiles, barriers, num_tiles + number, acc, weights, peak, total, position,
                (last - number) * TILE, True, SCALE, SOFTCAP, WINDOW, TILE, STAGES, logits_layout, layout,
            )  # fmt: skip
        for number in range(clear, again):
            acc, weights, peak, total = _advance(
                q, key_tiles, value_tiles, barriers, num_tiles + number, acc, weights, peak, total, position,
                (last - number) * TILE, False, SCALE, SOFTCAP, WINDOW, TILE, STAGES, logits_layout, layout,
            )  # fmt: skip
        if WINDOW > 0:
            for number in range(again, tiles):
                acc, weights, peak, total = _advance(
                    q, key_tiles, value_tiles, barriers, num_tiles + number, acc, weights, peak, total, position,
                    (last - number) * TILE, True, SCALE, SOFTCAP, WINDOW, TILE, STAGES, logits_layout, layout,
                )  # fmt: skip
        num_tiles += tiles
        mbarrier.arrive(query_empty.index(place), count=1)
        stage = (num_tiles - 1) % STAGES
        mbarrier.wait(value_full.index(stage), (num_tiles - 1) // STAGES & 1)
        acc = warpgroup_mma(weights, value_tiles.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(value_empty.index(stage), count=1)

        total = gl.convert_layout(total, gl.SliceLayout(1, layout))
        acc = acc / gl.where(total == 0.0, 1.0, total)[:, None]
        line = gl.arange(0, _HALF, gl.SliceLayout(1, layout))
        column = gl.arange(0, SIZE, gl.SliceLayout(0, layout))
        token, member = HALF * (QUERIES // 2) + line // PADDED, line % PADDED
        head = (first_row + token).to(gl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + member
        inside = ((token < left) & (member < GROUP))[:, None] & (column < SIZE)[None, :]
        gl.store(out + head[:, None] * SIZE + column[None, :], acc.to(out.dtype.element_ty), inside)


@gluon.jit(do_not_specialize=["stride_table"])
def prefill_specialized_kernel(
    out, queries, blocks, sinks, items, count, block_table, stride_table, SCALE: gl.constexpr, SOFTCAP: gl.constexpr,
    WINDOW: gl.constexpr, HAS_SINKS: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PADDED: gl.constexpr,
    SIZE: gl.constexpr, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, QUERY_STAGES: gl.constexpr,
    LOADING: gl.constexpr, COMPUTING: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The grid is the multiprocessors to use, each with one program. ``items`` and ``count`` are a
    :class:`~llmk_triton.attention.work_list.WorkList`; ``queries`` and ``blocks`` are descriptors of ``[tokens, heads,
    SIZE]``, and of the cache as ``[blocks, rows, SIZE]``."""
    BLOCKS: gl.constexpr = TILE // BLOCK_SIZE
    PANELS: gl.constexpr = SIZE // _HALF
    dtype: gl.constexpr = out.dtype.element_ty
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    limit = gl.load(count) * KV_HEADS
    PARTS: gl.constexpr = STAGES * PANELS * BLOCKS
    query_shape: gl.constexpr = [QUERY_STAGES * 2 * PANELS, _HALF // PADDED, PADDED, _HALF]
    query_parts = gl.allocate_shared_memory(dtype, query_shape, queries.layout)
    key_parts = gl.allocate_shared_memory(dtype, [PARTS, 1, BLOCK_SIZE, _HALF], blocks.layout)
    value_parts = gl.allocate_shared_memory(dtype, [PARTS, 1, BLOCK_SIZE, _HALF], blocks.layout)
    query_tiles = _as_tiles(query_parts, QUERY_STAGES * 2, _HALF, SIZE, shared)
    key_tiles = _as_tiles(key_parts, STAGES, TILE, SIZE, shared)
    value_tiles = _as_tiles(value_parts, STAGES, TILE, SIZE, shared)
    query_full = gl.allocate_shared_memory(gl.int64, [QUERY_STAGES, 1], barrier)
    query_empty = gl.allocate_shared_memory(gl.int64, [QUERY_STAGES, 1], barrier)
    key_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    key_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    value_full = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], barrier)
    value_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(value_full.index(STAGES), count=1)
    for stage in gl.static_range(QUERY_STAGES):
        mbarrier.init(query_full.index(stage), count=1)
        mbarrier.init(query_empty.index(stage), count=2)
    for stage in gl.static_range(STAGES):
        mbarrier.init(key_full.index(stage), count=1)
        mbarrier.init(key_empty.index(stage), count=2)
        mbarrier.init(value_full.index(stage), count=1)
        mbarrier.init(value_empty.index(stage), count=2)
    barriers = (query_full, query_empty, key_full, key_empty, value_full, value_empty)
    gl.warp_specialize(
        [
            (_compute, (out, sinks, query_tiles, key_tiles, value_tiles, barriers, items, limit, gl.constexpr(0), SCALE,
                        SOFTCAP, WINDOW, HAS_SINKS, KV_HEADS, GROUP, PADDED, SIZE, TILE, STAGES, QUERY_STAGES)),
            (_compute, (out, sinks, query_tiles, key_tiles, value_tiles, barriers, items, limit, gl.constexpr(1), SCALE,
                        SOFTCAP, WINDOW, HAS_SINKS, KV_HEADS, GROUP, PADDED, SIZE, TILE, STAGES, QUERY_STAGES)),
            (_load, (queries, blocks, query_parts, key_parts, value_parts, barriers, items, limit, block_table,
                     stride_table, KV_HEADS, GROUP, PADDED, SIZE, WINDOW, BLOCK_SIZE, TILE, STAGES, QUERY_STAGES)),
        ],
        [4, 1],
        [COMPUTING, LOADING],
    )  # fmt: skip
