"""Attention to the tokens that an indexer picked (DeepSeek sparse attention, DSA, arXiv:2512.02556), and what picks
them. Offsets of tokens and blocks have 64 bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.common.targets import current_target, dot_precision, latent_decode_configs, num_multiprocessors
from llmk_triton.latent.decode import merged_parts
from llmk_triton.latent.query import write
from llmk_triton.recurrent.runs import request_of, request_room

_KEYS = 64
"""Keys of the indexer per program."""
_MOST_SCORES = 1 << 25
"""Of a launch."""
_LAST = (1 << 31) - 1
"""From which positions count down in :func:`ranked`."""
_MOST_PARTS = 16
"""Programs at most that share the selected tokens of one token."""
_NOTHING = -(1 << 63)
_LOG2E = 1.4426950408889634


@triton.jit
def _token_in_step(query_start, seq_lens, token, last, STEPS: tl.constexpr):
    """The request of a token, its position, and whether it is a token of a request, not padding."""
    request = request_of(query_start, token, last, STEPS)
    end = tl.load(query_start + request + 1)
    return request.to(tl.int64), tl.load(seq_lens + request) - end + token, token < end


@triton.jit
def ranked(score, place):
    """An int64 that is the greater, the greater ``score`` (float32) is, and of equal ones the smaller ``place``."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return ordered * 4294967296 + (0x7FFFFFFF - place).to(tl.int64)


@triton.jit(do_not_specialize=["first_token", "last", "stride_table", "width"])
def index_scores_kernel(
    ranks, q, weights, cache, query_start, seq_lens, block_table, first_token, last, stride_q, stride_weights,
    stride_block, stride_token, stride_table, width,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, KEYS: tl.constexpr, NOTHING: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What :func:`ranked` makes of the scores of ``KEYS`` keys for one token, the least number for later ones and for
    padding. The grid is ``[tokens from first_token on, blocks of keys]``; ``ranks`` is int64 ``[tokens, width]``, from
    ``first_token`` on."""
    row, column, place = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    pdl.release(PDL)
    pdl.wait(PDL)
    token = first_token + tl.program_id(0)
    request, position, is_real = _token_in_step(query_start, seq_lens, token, last, STEPS)
    found = tl.full([KEYS], NOTHING, tl.int64)
    if is_real & (tl.program_id(1) * KEYS <= position):
        seen, has_head, has_column = place <= position, row < HEADS, column < SIZE
        block = tl.load(block_table + request * stride_table + place // BLOCK_SIZE, seen, other=0).to(tl.int64)
        at = cache + block * stride_block + place % BLOCK_SIZE * stride_token
        keys = tl.load(at[:, None] + column[None, :], seen[:, None] & has_column[None, :], other=0.0)
        of_q = q + token.to(tl.int64) * stride_q + row[:, None] * SIZE + column[None, :]
        queries = tl.load(of_q, has_head[:, None] & has_column[None, :], other=0.0)
        similar = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        factors = tl.load(weights + token.to(tl.int64) * stride_weights + row, has_head, other=0.0).to(tl.float32)
        total = tl.sum(tl.maximum(similar, 0.0) * factors[:, None], axis=0)
        found = tl.where(seen, ranked(total, place), found)
    to = ranks + tl.program_id(0).to(tl.int64) * width + place
    tl.store(to, found, place < width)


def select_tokens(q: Tensor, k: Tensor, weights: Tensor, cache: Tensor, step: CacheStep, *, top_k: int) -> Tensor:
    """As :func:`llmk.reference.attention.selected.select_tokens`: scores in one launch, of which torch picks the
    greatest."""
    write(k.unsqueeze(1), cache, step.slot_mapping, 1.0)
    tokens, heads, size = q.shape
    q = q if q.stride(2) == 1 and q.stride(1) == size else q.contiguous()
    weights = weights if weights.stride(1) == 1 else weights.contiguous()
    width, last = step.max_seq_len, step.num_requests - 1
    selected = torch.full((tokens, top_k), -1, dtype=torch.int32, device=q.device)
    at_once = max(1, _MOST_SCORES // width)
    for first in range(0, tokens, at_once):
        count = min(at_once, tokens - first)
        ranks = torch.empty(count, width, dtype=torch.int64, device=q.device)
        index_scores_kernel[(count, triton.cdiv(width, _KEYS))](
            ranks, q, weights, cache, step.query_start, step.seq_lens, step.block_table, first, last, q.stride(0),
            weights.stride(0), *cache.stride()[:2], step.block_table.stride(0), width, HEADS=heads, SIZE=size,
            BLOCK_SIZE=cache.shape[1], STEPS=request_room(step.num_requests).bit_length(),
            ROWS=max(16, triton.next_power_of_2(heads)), COLUMNS=max(16, triton.next_power_of_2(size)), KEYS=_KEYS,
            NOTHING=_NOTHING, PRECISION=dot_precision(current_target()), num_warps=4, num_stages=1, **pdl.options(),
        )  # fmt: skip
        best = ranks.topk(min(top_k, width), dim=1, sorted=False).values
        places = torch.where(best == _NOTHING, width, _LAST - best % (1 << 32)).sort(dim=1).values
        selected[first : first + count, : places.shape[1]] = torch.where(places < width, places, -1).to(torch.int32)
    return selected


@triton.jit(do_not_specialize=["last", "stride_table", "top_k", "each"])
def selected_attention_kernel(
    out, query, selected, cache, partial, stats, query_start, seq_lens, block_table, last, stride_query, stride_block,
    stride_token, stride_table, top_k, each,
    SCALE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, STEPS: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A group of heads of one token, over ``each`` of the tokens that it selects. The grid is ``[tokens, groups of
    GROUP heads, PARTS]``. With one part, it stores ``out`` (``[tokens, HEADS, LATENT]``), else ``partial`` (float32
    ``[tokens, PARTS, HEADS, LATENT]``) and ``stats`` (``[tokens, PARTS, HEADS, 2]``, maximum and sum)."""
    row, column, turned = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, ROPE_BLOCK)
    head, part = tl.program_id(1) * GROUP + row, tl.program_id(2)
    pdl.release(PDL)
    pdl.wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    request, _, is_real = _token_in_step(query_start, seq_lens, tl.program_id(0), last, STEPS)
    inside = (row < GROUP) & (head < HEADS) & is_real
    has_latent, has_rope = (column < LATENT)[None, :], (turned < ROPE)[None, :]
    at = query + token * stride_query + head * (LATENT + ROPE)
    q = tl.load(at[:, None] + column[None, :], inside[:, None] & has_latent, other=0.0)
    q_rope = tl.load(at[:, None] + LATENT + turned[None, :], inside[:, None] & has_rope, other=0.0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    end = tl.where(is_real, tl.minimum(top_k, (part + 1) * each), 0)
    for first in tl.range(part * each, end, TILE):
        number = first + tl.arange(0, TILE)
        place = tl.load(selected + token * top_k + number, number < end, other=-1)
        seen = place >= 0
        block = tl.load(block_table + request * stride_table + place // BLOCK_SIZE, seen, other=0).to(tl.int64)
        rows = cache + block * stride_block + tl.maximum(place, 0) % BLOCK_SIZE * stride_token
        latent = tl.load(rows[:, None] + column[None, :], seen[:, None] & has_latent, other=0.0)
        key = tl.load(rows[:, None] + LATENT + turned[None, :], seen[:, None] & has_rope, other=0.0)
        logits = tl.dot(q, tl.trans(latent), input_precision=PRECISION)
        logits = tl.dot(q_rope, tl.trans(key), logits, input_precision=PRECISION) * SCALE
        logits = tl.where(seen[None, :], logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, axis=1))
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink, chances = tl.exp2(peak - anchor), tl.exp2(logits - anchor[:, None])
        total = total * shrink + tl.sum(chances, axis=1)
        acc = tl.dot(chances.to(latent.dtype), latent, acc * shrink[:, None], input_precision=PRECISION)
        peak = new_peak
    here = ((row < GROUP) & (head < HEADS))[:, None] & has_latent
    if PARTS == 1:
        to = out + (token * HEADS + head)[:, None] * LATENT + column[None, :]
        tl.store(to, (acc / tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty), here)
    else:
        mine = (token * PARTS + part) * HEADS + head
        tl.store(partial + mine[:, None] * LATENT + column[None, :], acc, here)
        tl.store(stats + 2 * mine, peak, (row < GROUP) & (head < HEADS))
        tl.store(stats + 2 * mine + 1, total, (row < GROUP) & (head < HEADS))


@triton.jit
def selected_merge_kernel(
    out, partial, stats,
    HEADS: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merges what :func:`selected_attention_kernel` left in parts. The grid is ``[tokens, HEADS]``."""
    pdl.release(PDL)
    pdl.wait(PDL)
    token, head, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
    found = merged_parts(partial, stats, token * PARTS * HEADS + head, PARTS, column, HEADS, LATENT, PARTS)
    tl.store(out + (token * HEADS + head) * LATENT + column, found.to(out.dtype.element_ty), column < LATENT)


def selected_attention(
    query: Tensor, row: Tensor, selected: Tensor, cache: Tensor, step: CacheStep, *, scale: float, latent_dim: int
) -> Tensor:
    """As :func:`llmk.reference.attention.selected.selected_attention`: one launch after that which stores the rows; for
    few tokens, whose selected tokens several programs share, a second that merges."""
    write(row.unsqueeze(1), cache, step.slot_mapping, 1.0)
    tokens, heads, width = query.shape
    query = query if query.stride(2) == 1 and query.stride(1) == width else query.contiguous()
    target, top_k, rope = current_target(), selected.shape[1], width - latent_dim
    block, rope_block = max(16, triton.next_power_of_2(latent_dim)), max(16, triton.next_power_of_2(rope))
    group = min(heads, 64 if target.backend == "cuda" and target.arch == 90 else 32)
    config, _ = latent_decode_configs(target, (block + rope_block) * query.element_size(), group)
    tile, groups = config.tile, triton.cdiv(heads, group)
    wanted = num_multiprocessors(query.device) // max(1, tokens * groups)
    parts = min(_MOST_PARTS, triton.next_power_of_2(max(1, wanted)), triton.next_power_of_2(triton.cdiv(top_k, 64)))
    each = triton.cdiv(triton.cdiv(top_k, parts), tile.keys) * tile.keys
    out = torch.empty(tokens, heads, latent_dim, dtype=query.dtype, device=query.device)
    split = (tokens, parts, heads) if parts > 1 else (0, 0, 0)
    partial = torch.empty(*split, latent_dim, dtype=torch.float32, device=query.device)
    stats = torch.empty(*split, 2, dtype=torch.float32, device=query.device)
    sizes = {"HEADS": heads, "LATENT": latent_dim, "BLOCK": block, "PARTS": parts, **pdl.options()}
    selected_attention_kernel[(tokens, groups, parts)](
        out, query, selected, cache, partial, stats, step.query_start, step.seq_lens, step.block_table,
        step.num_requests - 1, query.stride(0), *cache.stride()[:2], step.block_table.stride(0), top_k, each, **sizes,
        SCALE=scale * _LOG2E, GROUP=group, ROPE=rope, ROPE_BLOCK=rope_block, BLOCK_SIZE=cache.shape[1],
        STEPS=request_room(step.num_requests).bit_length(), ROWS=tile.rows, TILE=tile.keys,
        PRECISION=dot_precision(target), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if parts > 1:
        selected_merge_kernel[(tokens, heads)](out, partial, stats, **sizes, num_warps=4)
    return out
