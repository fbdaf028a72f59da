"""What decode and prefill share: one tile of latent rows, loaded through the block table, in an online softmax.

A row of the cache is a latent vector of ``LATENT`` elements, then the shared key of ``ROPE``; there may be none. The
row is the key of all heads, and the latent vector is their value, so that it is loaded once for both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attention.tile import load_known, scaled, soften


@triton.jit
def load_queries(
    query, cache, token, head, inside, stride_query, scale, LATENT: tl.constexpr, ROPE: tl.constexpr,
    BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
):  # fmt: skip
    """The two parts of absorbed queries, ``[rows, BLOCK]`` and ``[rows, ROPE_BLOCK]`` with zeros beyond, times the
    ``scale`` of an fp8 cache. Without RoPE, the second is the first."""
    place = query + token.to(tl.int64) * stride_query + head * (LATENT + ROPE)
    column = tl.arange(0, BLOCK)
    q = tl.load(place[:, None] + column[None, :], inside[:, None] & (column < LATENT)[None, :], other=0.0)
    q = scaled(q, scale, cache)
    q_rope = q
    if ROPE > 0:
        column = tl.arange(0, ROPE_BLOCK)
        there = inside[:, None] & (column < ROPE)[None, :]
        q_rope = scaled(tl.load(place[:, None] + LATENT + column[None, :], there, other=0.0), scale, cache)
    return q, q_rope


@triton.jit
def attend_latents(
    acc, total, peak, q, q_rope, cache, block, start, position, limit, stride_block, stride_token,
    SCALE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the latent rows ``start`` to ``start + TILE - 1`` of a request to the rows' online softmax; arguments as in
    :func:`llmk_triton.attention.tile.attend_tile`, queries as :func:`load_queries` returns them. ``cache`` points to
    the first token of block 0."""
    token = start + tl.arange(0, TILE)
    known = token < limit
    place = cache + block.to(tl.int64) * stride_block + token % BLOCK_SIZE * stride_token
    column = tl.arange(0, q.shape[1])
    there = (column < LATENT)[None, :]
    if MASKED:
        there = there & known[:, None]
    whole: tl.constexpr = not MASKED and q.shape[1] == LATENT
    latent = load_known(place[:, None] + column[None, :], there, whole).to(q.dtype)
    logits = tl.dot(q, tl.trans(latent), input_precision=PRECISION)
    if ROPE > 0:
        turned = tl.arange(0, q_rope.shape[1])
        there = (turned < ROPE)[None, :]
        if MASKED:
            there = there & known[:, None]
        whole_rope: tl.constexpr = not MASKED and q_rope.shape[1] == ROPE
        key = load_known(place[:, None] + LATENT + turned[None, :], there, whole_rope).to(q.dtype)
        logits = tl.dot(q_rope, tl.trans(key), logits, input_precision=PRECISION)
    weights, shrink, total, peak = soften(logits, total, peak, token, position, known, SCALE, 0.0, 0, False, MASKED)
    acc = tl.dot(weights.to(q.dtype), latent, acc * shrink[:, None], input_precision=PRECISION)
    return acc, total, peak
