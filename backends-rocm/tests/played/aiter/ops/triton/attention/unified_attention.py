"""Of AITER."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Tensor, lengths: Tensor, scale: float, table: Tensor,
    window: int = 0, softcap: float = 0.0, sinks: Tensor | None = None,
) -> None:  # fmt: skip
    """Request by request, from blocks ``[blocks, block_size, kv_heads, size]``."""
    starts, lengths = starts.tolist(), lengths.tolist()
    for i, length in enumerate(lengths):
        rows = slice(starts[i], starts[i + 1])
        count = rows.stop - rows.start
        if not count or not length:
            continue
        # Blocks that no window reaches any more may be gone from the table.
        first = max(length - count - window + 1, 0) // k.shape[1] * k.shape[1] if window else 0
        blocks = table[i, first // k.shape[1] : -(-length // k.shape[1])].long()
        group = q.shape[1] // k.shape[2]
        keys, values = (x[blocks].flatten(0, 1)[: length - first].float().repeat_interleave(group, 1) for x in (k, v))
        logits = torch.einsum("qhd,khd->hqk", q[rows].float(), keys) * scale
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        distance = torch.arange(length - count, length)[:, None] - torch.arange(first, length)[None]
        hidden = (distance < 0) | ((distance >= window) if window else False)
        logits = logits.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            logits = torch.cat((logits, sinks.float()[:, None, None].expand(-1, count, 1)), -1)
        shares = logits.softmax(-1)[..., : length - first]
        # What no query sees may never have been written.
        values = values.masked_fill(hidden.all(0)[:, None, None], 0.0)
        out[rows] = torch.einsum("hqk,khd->qhd", shares, values).to(out.dtype)


def unified_attention(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
    softcap,
    q_descale,
    k_descale,
    v_descale,
    q_scales=None,
    alibi_slopes=None,
    output_scale=None,
    qq_bias=None,
    sinks=None,
    shuffled_kv_cache: bool = False,
    skip_reduce: bool = False,
    backend: str | None = None,
):
    assert causal
    assert len(cu_seqlens_q) == len(seqused_k) + 1 == len(block_table) + 1
    assert max_seqlen_k >= int(seqused_k.max())
    window = 1 + window_size[0]
    attend(q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table, window, softcap, sinks)
    return out
