"""Attention to the tokens that an indexer picked (DeepSeek sparse attention, DSA, arXiv:2512.02556), over rows that ops
find by the block table themselves.

Its GEMMs have sizes that depend on neither the batch nor the length of a request, so that results don't either.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from llmk.api.cache import CacheStep

_TOKENS = 16
"""Queries whose scores are computed at once."""
_KEYS = 256
"""Keys whose scores are computed at once."""


def select_tokens(q: Tensor, k: Tensor, weights: Tensor, cache: Tensor, step: CacheStep, *, top_k: int) -> Tensor:
    """The earlier tokens that each token attends to: those with the greatest sums ``weights[h] * relu(q[h] k)`` over
    heads, in float32; of equal ones the first. Stores the step's own keys first.

    Args:
        q: ``[tokens, heads, head_dim]``, normed and rotated as the model wants it; ``k``: ``[tokens, head_dim]``.
        weights: ``[tokens, heads]``.
        cache: the keys, ``[num_blocks, block_size, head_dim]``, read and written in place.
        top_k: how many.

    Returns:
        int32 ``[tokens, top_k]``: positions, ascending; -1 behind the last one where there are fewer tokens, and in
        rows of padding.
    """
    store_rows(k, cache, step)
    found = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    for first, end, before, table in requests_of(step):
        keys = cache.flatten(0, 1)[
            slots_of(torch.arange(before + end - first, device=q.device), table, step.block_size)
        ]
        for start in range(first, end, _TOKENS):
            rows = slice(start, min(start + _TOKENS, end))
            scores = index_scores(q[rows].float(), weights[rows].float(), keys.float())
            position = before + torch.arange(rows.start - first, rows.stop - first, device=q.device)[:, None]
            best = best_of(scores, position + 1, top_k)
            found[rows, : best.shape[1]] = best
    return found


def best_of(scores: Tensor, known: Tensor, top_k: int) -> Tensor:
    """int32 ``[tokens, at most top_k]``: the places of the greatest scores, ascending, of the first ``known``
    (``[tokens, 1]``) of each token; of equal ones the first. -1 behind the last one where there are fewer."""
    width = scores.shape[1]
    scores = scores.masked_fill(torch.arange(width, device=scores.device) >= known, float("-inf"))
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    best = torch.where(best < known, best, width).sort(dim=1).values
    return torch.where(best < width, best, -1).to(torch.int32)


def index_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """``[tokens, keys]``, by GEMMs of 16 queries and 256 keys."""
    count, heads, _ = q.shape
    q, weights = pad(q, (0, 0, 0, 0, 0, _TOKENS - count)), pad(weights, (0, 0, 0, _TOKENS - count))
    found = []
    for at in range(0, keys.shape[0], _KEYS):
        own = keys[at : at + _KEYS]
        similar = q.flatten(0, 1) @ pad(own, (0, 0, 0, _KEYS - own.shape[0])).T
        scores = weights.unsqueeze(1) @ similar.unflatten(0, (-1, heads)).relu()
        found.append(scores[:count, 0, : own.shape[0]])
    return torch.cat(found, 1)


def selected_attention(
    query: Tensor, row: Tensor, selected: Tensor, cache: Tensor, step: CacheStep, *, scale: float, latent_dim: int
) -> Tensor:
    """Attention over latent rows, of which each token sees those ``selected`` for it. Stores the step's own rows first.

    Args:
        query: ``[tokens, heads, row_dim]``.
        row: ``[tokens, row_dim]``, of which the first ``latent_dim`` elements are the value of all heads.
        selected: int32 ``[tokens, top_k]``, positions; below 0: none.
        cache: ``[num_blocks, block_size, row_dim]``, read and written in place.
        scale: factor of the logits.

    Returns:
        ``[tokens, heads, latent_dim]`` in ``query``'s dtype; rows of padding are zeros.
    """
    store_rows(row, cache, step)
    out = query.new_zeros(*query.shape[:2], latent_dim)
    for first, end, _, table in requests_of(step):
        for start in range(first, end, _TOKENS):
            rows = slice(start, min(start + _TOKENS, end))
            count = rows.stop - rows.start
            wanted = pad(selected[rows].long(), (0, 0, 0, _TOKENS - count), value=-1)
            seen = cache.flatten(0, 1)[slots_of(wanted.clamp(min=0), table, step.block_size)].float()
            seen = seen.masked_fill((wanted < 0).unsqueeze(2), 0.0)
            logits = pad(query[rows].float(), (0, 0, 0, 0, 0, _TOKENS - count)) @ seen.mT * scale
            logits = logits.masked_fill((wanted < 0).unsqueeze(1), float("-inf"))
            attended = logits.softmax(-1) @ seen[..., :latent_dim]
            out[rows] = attended[:count].to(out.dtype)
    return out


def store_rows(rows: Tensor, cache: Tensor, step: CacheStep) -> None:
    """Stores a step's rows, ``[tokens, size]``, in ``cache``, ``[num_blocks, block_size, size]``; those of padding are
    skipped."""
    slots = step.slot_mapping[: step.num_tokens]
    kept = slots >= 0
    slots = slots[kept]
    cache[slots // step.block_size, slots % step.block_size] = rows[: step.num_tokens][kept].to(cache.dtype)


def requests_of(step: CacheStep) -> Iterator[tuple[int, int, int, Tensor]]:
    """Of each request with tokens in a step: the first of their rows, the one after the last, the tokens before them,
    and its blocks. Reads lengths back to the host."""
    starts, lengths = step.query_start.tolist(), step.seq_lens.tolist()
    for request, length in enumerate(lengths):
        first, end = starts[request], starts[request + 1]
        if first < end:
            yield first, end, length - (end - first), step.block_table[request]


def slots_of(positions: Tensor, table: Tensor, block_size: int) -> Tensor:
    """The slots of a request's ``positions``, int64."""
    return table[positions // block_size].long() * block_size + positions % block_size
