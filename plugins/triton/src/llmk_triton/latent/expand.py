"""Keys and values of a step's prompts, projected from the latent rows in the cache.

For attention with absorbed queries, a pair of a query and a key costs several times what it costs with keys and values
as the model defines them. Those of a prompt are worth projecting where enough queries see them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk_triton.attention.decode_schedule import room
from llmk_triton.attention.prefill import find_request
from llmk_triton.common import pdl
from llmk_triton.common.targets import ExpansionTile, current_target, dot_precision, expansion_tile

_MOST_BYTES = 256 << 20
"""Most bytes of projected keys and values."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Which rows may be projected: whole tiles for each request with several queries.

    Attributes:
        tile: sizes of a tile.
        starts: int32 ``[requests + 1]``, cumulative number of tiles of the requests before.
        tiles: how many there are.
        keys, pairs: of these requests, the keys, and the pairs of a query and a key that it sees.
    """

    tile: ExpansionTile
    starts: Tensor
    tiles: int
    keys: int
    pairs: int

    def pays(self, k_up: Tensor, v_up: Tensor) -> bool:
        """Whether to project keys and values takes fewer operations than to attend with absorbed queries, and there is
        memory for them. Arguments are those of :func:`expand`."""
        heads, key, latent = k_up.shape
        projected = key + v_up.shape[2]
        size = self.tiles * self.tile.rows * heads * projected * k_up.itemsize
        return self.keys * latent * projected < self.pairs * (2 * latent - projected) and size <= _MOST_BYTES


@dataclass(frozen=True, slots=True)
class Expanded:
    """Projected rows: ``keys`` ``[heads, rows, key_dim]``, ``shared`` ``[rows, rotary_dim]``, the part of the key that
    is the same for all heads, and ``values`` ``[heads, rows, value_dim]``."""

    keys: Tensor
    shared: Tensor
    values: Tensor


def plan_expansion(step: CacheStep) -> Expansion:
    """Launches the kernel that places the requests' rows. The step has its lengths on the host, because the number of
    rows is that of a buffer."""
    requests, tile = step.seq_lens.shape[0], expansion_tile(current_target())
    starts = torch.empty(requests + 1, dtype=torch.int32, device=step.seq_lens.device)
    place_rows_kernel[(1,)](
        starts,
        step.query_start,
        step.seq_lens,
        requests,
        ROWS=tile.rows,
        REQUESTS=room(requests, mixed=True),
        num_warps=4,
    )
    lengths = zip(step.host_query_lens, step.host_seq_lens, strict=True)
    prompts = [(count, length) for count, length in lengths if count > 1]
    return Expansion(
        tile,
        starts,
        tiles=sum(-(-length // tile.rows) for _, length in prompts),
        keys=sum(length for _, length in prompts),
        pairs=sum(count * (length - count) + count * (count + 1) // 2 for count, length in prompts),
    )


@triton.jit(do_not_specialize=["num_requests"])
def place_rows_kernel(starts, query_start, seq_lens, num_requests, ROWS: tl.constexpr, REQUESTS: tl.constexpr):
    """One program, which writes the ``starts`` of an :class:`Expansion`; ``REQUESTS >= num_requests``."""
    request = tl.arange(0, REQUESTS)
    there = request < num_requests
    length = tl.load(query_start + request + 1, there, other=0) - tl.load(query_start + request, there, other=0)
    tiles = tl.where(length > 1, tl.cdiv(tl.load(seq_lens + request, there, other=0), ROWS), 0)
    tl.store(starts, 0)
    tl.store(starts + 1 + request, tl.cumsum(tiles, axis=0), there)


def expand(cache: Tensor, step: CacheStep, expansion: Expansion, k_up: Tensor, v_up: Tensor, rope: int) -> Expanded:
    """Projects the rows of ``cache`` (``[blocks, block_size, latent_dim + rope]``).

    ``k_up`` is ``[heads, key_dim, latent_dim]``, ``v_up`` ``[heads, latent_dim, value_dim]``.
    """
    heads, key, latent = k_up.shape
    value, tile, count = v_up.shape[2], expansion.tile, expansion.tiles * expansion.tile.rows
    keys, values = k_up.new_empty(heads, count, key), k_up.new_empty(heads, count, value)
    shared = k_up.new_empty(count, rope)
    expand_kernel[(expansion.tiles, heads)](
        keys,
        shared,
        values,
        cache,
        k_up,
        v_up,
        expansion.starts,
        step.seq_lens,
        step.block_table,
        step.seq_lens.shape[0],
        *cache.stride()[:2],
        step.block_table.stride(0),
        KEY=key,
        VALUE=value,
        LATENT=latent,
        ROPE=rope,
        KEY_BLOCK=max(16, triton.next_power_of_2(key)),
        # Narrower ones are laid out in shared memory in another way than rows of the cache, and for a loop of one pass
        # ptxas 12.8 then computes the address of values from a wrong register.
        VALUE_BLOCK=max(64, triton.next_power_of_2(value)),
        ROPE_BLOCK=max(2, triton.next_power_of_2(rope)),
        BLOCK_SIZE=cache.shape[1],
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        PRECISION=dot_precision(current_target()),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl.options(),
    )
    return Expanded(keys, shared, values)


@triton.jit(do_not_specialize=["num_requests", "stride_table"])
def expand_kernel(
    keys, shared, values, cache, k_up, v_up, starts, seq_lens, block_table, num_requests, stride_block, stride_token,
    stride_table, KEY: tl.constexpr, VALUE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[tiles, heads]``. Rows beyond a request's length are projected from zeros."""
    pdl.wait(PDL)
    pdl.release(PDL)
    tile, head, count = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0) * ROWS
    request = find_request(starts, num_requests, tile)
    token = (tile - tl.load(starts + request)) * ROWS + tl.arange(0, ROWS)
    inside = token < tl.load(seq_lens + request)
    table = block_table + request.to(tl.int64) * stride_table
    block = tl.load(table + token // BLOCK_SIZE, inside, other=0).to(tl.int64)
    source = cache + block * stride_block + token % BLOCK_SIZE * stride_token
    row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    of_key, of_value = tl.arange(0, KEY_BLOCK), tl.arange(0, VALUE_BLOCK)
    k_up += head * KEY * LATENT
    v_up += head * LATENT * VALUE
    key = tl.zeros([ROWS, KEY_BLOCK], tl.float32)
    value = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    for first in tl.range(0, LATENT, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        there = column < LATENT
        x = tl.load(source[:, None] + column[None, :], inside[:, None] & there[None, :], other=0.0)
        x = x.to(keys.dtype.element_ty)
        up = tl.load(
            k_up + of_key[:, None] * LATENT + column[None, :], (of_key < KEY)[:, None] & there[None, :], other=0.0
        )
        key = tl.dot(x, tl.trans(up), key, input_precision=PRECISION)
        up = tl.load(
            v_up + column[:, None] * VALUE + of_value[None, :], there[:, None] & (of_value < VALUE)[None, :], other=0.0
        )
        value = tl.dot(x, up, value, input_precision=PRECISION)
    to = keys + (head * count + row)[:, None] * KEY + of_key[None, :]
    tl.store(to, key.to(keys.dtype.element_ty), (of_key < KEY)[None, :])
    to = values + (head * count + row)[:, None] * VALUE + of_value[None, :]
    tl.store(to, value.to(values.dtype.element_ty), (of_value < VALUE)[None, :])
    if ROPE > 0:
        turned = tl.arange(0, ROPE_BLOCK)
        there_too = inside[:, None] & (turned < ROPE)[None, :]
        rotated = tl.load(source[:, None] + LATENT + turned[None, :], there_too & (head == 0), other=0.0)
        to_shared = shared + row[:, None] * ROPE + turned[None, :]
        tl.store(to_shared, rotated.to(shared.dtype.element_ty), (turned < ROPE)[None, :] & (head == 0))
