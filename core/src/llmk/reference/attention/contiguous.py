"""Attention over contiguous keys and values: one function in plain float32, and one through torch's fused kernel.

Shapes throughout: ``q`` ``[requests, queries, heads, head_dim]``, ``k`` ``[requests, keys, kv_heads, head_dim]`` and
``v`` ``[requests, keys, kv_heads, value_dim]``; head ``i`` of ``q`` reads head ``i // (heads // kv_heads)`` of ``k``
and ``v``. The result is ``[requests, queries, heads, value_dim]`` in ``q``'s dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SCORES_AT_ONCE = 1 << 25
"""Most elements of a score matrix (128 MiB); longer prefills are computed in chunks of queries."""


def attend_plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    distances: Tensor | None = None,
) -> Tensor:
    """Scaled dot product attention in plain operators, in float32 for inputs of any dtype.

    ``softmax(cap(q @ k.T * scale)) @ v`` with ``cap(x) = softcap * tanh(x / softcap)`` (Gemma 2, arXiv:2408.00118).

    Args:
        allowed: bool ``[requests, queries, keys]``, which keys each query sees (at least one); ``None``: all.
        sinks: ``[heads]``, logit of a key whose value is zero (attention sinks, arXiv:2309.17453).
        slopes: ``[heads]``; with them, ``slope * distance`` is added to the logits (ALiBi, arXiv:2108.12409).
        distances: ``[requests, queries, keys]``, positions of keys less those of queries.
    """
    requests, queries, heads, head_dim = q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    grouped = q.float().view(requests, queries, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    keys_t, values = k.float().permute(0, 2, 3, 1), v.float().transpose(1, 2)
    chunks = []
    step = max(1, SCORES_AT_ONCE // (requests * heads * keys))
    for start in range(0, queries, step):
        # The heads of a group are rows of one matrix product, so that keys and values are not repeated for each of
        # them.
        rows = grouped[:, :, :, start : start + step].flatten(2, 3)
        scores = (rows @ keys_t * scale).view(requests, kv_heads, group, -1, keys)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if slopes is not None and distances is not None:
            own = slopes.float().view(1, kv_heads, group, 1, 1)
            scores = scores + own * distances[:, None, None, start : start + step].float()
        if allowed is not None:
            scores = scores.masked_fill(~allowed[:, None, None, start : start + step], float("-inf"))
        out = _softmax(scores, sinks).flatten(2, 3) @ values
        chunks.append(out.view(requests, kv_heads, group, -1, v.shape[-1]))
    return torch.cat(chunks, dim=3).permute(0, 3, 1, 2, 4).reshape(*q.shape[:-1], v.shape[-1]).to(q.dtype)


def attend_fused(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float) -> Tensor:
    """As :func:`attend_plain` through ``torch.nn.functional.scaled_dot_product_attention``, without soft cap, sinks and
    slopes.

    Args:
        causal: there are as many queries as keys, and each query sees the keys up to its own; ``allowed`` is then
            ``None``.
    """
    if q.shape[1] == 1:
        return _attend_decode(q, k, v, allowed, scale)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if allowed is None else allowed[:, None],
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def _attend_decode(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """One query per request: the heads of a group become the query rows of one head, so that K and V are read once and
    never repeated."""
    requests, _, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    rows = q.view(requests, kv_heads, heads // kv_heads, head_dim)
    single = rows.shape[2] == 1
    if single and q.dtype != torch.float32:
        # torch multiplies 16-bit vectors several times slower than 16-bit matrices, so a duplicated row is faster than
        # a single one.
        rows = rows.expand(-1, -1, 2, -1)
    mask = None if allowed is None else allowed[:, None]
    out = F.scaled_dot_product_attention(rows, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale)
    if single:
        out = out[:, :, :1]
    return out.reshape(*q.shape[:-1], v.shape[-1])


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of ``[requests, kv_heads, group, queries, keys]``, with each head's sink in the
    denominator."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.float().view(1, *scores.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
