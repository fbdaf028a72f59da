"""Attention to the last tokens, and to entries that each stand for a group of earlier ones (DeepSeek-V4), over rows
that ops find by the block table themselves.

A group is ``rate`` consecutive tokens. Its entry is the average of rows that its tokens have, channel by channel, by
the softmax of gates that they have too; where groups overlap, the tokens of the group before take part, with rows and
gates of their own. The entry is normed, rotated by the position of the group's first token, and stored as the row of
the group's last token, so that a token sees those of all groups that end before it or with it.

As in :mod:`llmk.reference.attention.selected`, results depend on neither the batch nor the length of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from llmk.api.cache import CacheStep
from llmk.reference.attention.selected import best_of, index_scores, requests_of, slots_of, store_rows
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import rope_interleaved

_TOKENS = 16
"""Queries that are computed at once."""
_ENTRIES = 64
"""Queries that see all entries see a multiple of so many, of which the last ones count for nothing."""


@dataclass(frozen=True, slots=True)
class Compression:
    """What entries are made with.

    Attributes:
        rows: ``[tokens, 2 * width]``, the rows of the step's tokens, then their gates. ``width`` is the size of an
            entry; or twice that where groups overlap: what a token adds to the group after its own, then what it adds
            to its own.
        bias: float32 ``[rate, width]``, added to the gates of the tokens of a group.
        weight, eps: of the norm of entries.
        cos_sin: float32 ``[positions, rot]``; the last ``rot`` elements of an entry are rotated, neighbours as pairs.
    """

    rows: Tensor
    bias: Tensor
    weight: Tensor
    eps: float
    cos_sin: Tensor


def select_entries(
    q: Tensor,
    weights: Tensor,
    rows: Tensor,
    bias: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    caches: Sequence[Tensor],
    step: CacheStep,
    *,
    top_k: int,
) -> Tensor:
    """The entries that each token attends to: those with the greatest sums ``weights[h] * relu(q[h] entry)`` over
    heads, in float32; of equal ones the first. Stores the entries of groups that the step's tokens complete first.

    Args:
        q: ``[tokens, heads, head_dim]``, rotated.
        weights: ``[tokens, heads]``.
        rows, bias, weight, eps, cos_sin: see :class:`Compression`.
        caches: ``[num_blocks, block_size, 2 * width]``, rows and gates, and ``[num_blocks, block_size, head_dim]``,
            entries; read and written in place.
        top_k: how many.

    Returns:
        int32 ``[tokens, top_k]``: numbers of groups, ascending; -1 behind the last one where there are fewer, and in
        rows of padding.
    """
    kept, entries = caches
    compress(Compression(rows, bias, weight, eps, cos_sin), kept, entries, step)
    rate = bias.shape[0]
    found = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    for first, end, before, table in requests_of(step):
        if before + end - first < rate:
            continue
        ends = torch.arange(rate - 1, before + end - first, rate, device=q.device)
        keys = entries.flatten(0, 1)[slots_of(ends, table, step.block_size)]
        for start in range(first, end, _TOKENS):
            own = slice(start, min(start + _TOKENS, end))
            complete = (before + torch.arange(start - first + 1, own.stop - first + 1, device=q.device)) // rate
            scores = index_scores(q[own].float(), weights[own].float(), keys.float())
            best = best_of(scores, complete[:, None], top_k)
            found[own, : best.shape[1]] = best
    return found


def compressed_attention(
    q: Tensor,
    kv: Tensor,
    rows: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    selected: Tensor | None,
    sinks: Tensor,
    caches: Sequence[Tensor],
    step: CacheStep,
    *,
    window: int,
    scale: float,
) -> Tensor:
    """Attention of each token to the last ``window`` tokens, itself included, and to entries. Keys are values too, and
    all heads share them. Stores the step's own, and the entries of groups that its tokens complete, first.

    Args:
        q: ``[tokens, heads, head_dim]``, rotated.
        kv: ``[tokens, head_dim]``, rotated.
        rows, bias, weight, eps, cos_sin: see :class:`Compression`; the first three are ``None`` where there are no
            entries.
        selected: int32 ``[tokens, top_k]``, the entries that each token sees, below 0: none; ``None``: all of complete
            groups.
        sinks: float32 ``[heads]``, logits that take part in the softmax alone.
        caches: ``[num_blocks, block_size, head_dim]``, keys; where there are entries, ``[num_blocks, block_size, 2 *
            width]``, rows and gates, and ``[num_blocks, block_size, head_dim]``, entries. Read and written in place.
        scale: factor of the logits.

    Returns:
        ``[tokens, heads, head_dim]`` in ``q``'s dtype; rows of padding are zeros.
    """
    keys, *compressed = caches
    store_rows(kv, keys, step)
    rate = 0
    if rows is not None and bias is not None and weight is not None:
        kept, entries = compressed
        compress(Compression(rows, bias, weight, eps, cos_sin), kept, entries, step)
        rate = bias.shape[0]
    out = torch.zeros_like(q)
    for first, end, before, table in requests_of(step):
        positions = torch.arange(before, before + end - first, device=q.device)
        for alike, count in _alike(positions, rate, selected):
            own, at = first + alike, positions[alike, None]
            seen = at - torch.arange(window - 1, -1, -1, device=q.device)
            found = [keys.flatten(0, 1)[slots_of(seen.clamp(min=0), table, step.block_size)]]
            valid = [seen >= 0]
            if rate and count:
                numbers = torch.arange(count, device=q.device).expand(len(own), -1)
                numbers = numbers if selected is None else selected[own].long()
                ends = numbers.clamp(min=0) * rate + rate - 1
                valid.append((numbers >= 0) & (ends <= at))
                found.append(entries.flatten(0, 1)[slots_of(ends.minimum(at), table, step.block_size)])
            out[own] = _attend(q[own], torch.cat(found, 1), torch.cat(valid, 1), sinks, scale).to(out.dtype)
    return out


def compress(given: Compression, kept: Tensor, entries: Tensor, step: CacheStep) -> None:
    """Stores the step's rows and gates in ``kept``, and the entries of the groups that its tokens complete in
    ``entries``."""
    store_rows(given.rows, kept, step)
    size, rate = entries.shape[-1], given.bias.shape[0]
    overlaps = given.bias.shape[1] > size
    span = torch.arange(-rate if overlaps else 0, rate, device=kept.device)
    for first, end, before, table in requests_of(step):
        ends = torch.arange(before, before + end - first, device=kept.device)
        ends = ends[(ends + 1) % rate == 0]
        members = (ends - rate + 1)[:, None] + span
        rows = kept.flatten(0, 1)[slots_of(members.clamp(min=0), table, step.block_size)].float()
        values, gates = rows.chunk(2, dim=-1)
        gates = (gates + given.bias[span % rate]).masked_fill((members < 0)[..., None], float("-inf"))
        if overlaps:
            values, gates = (_overlapping(each, rate, size) for each in (values, gates))
        # Not torch.softmax, which computes other dimensions than the last differently for other numbers of rows.
        shares = torch.exp(gates - gates.amax(dim=1, keepdim=True))
        made = ((values * shares).sum(dim=1) / shares.sum(dim=1)).to(entries.dtype)
        made = _rotated(rms_norm(made, given.weight, given.eps), ends - rate + 1, given.cos_sin)
        slots = slots_of(ends, table, step.block_size)
        entries[slots // step.block_size, slots % step.block_size] = made


def _overlapping(x: Tensor, rate: int, size: int) -> Tensor:
    """What the tokens of the group before add to this one, and what its own do: ``[groups, 2 * rate, size]``."""
    return torch.cat((x[:, :rate, :size], x[:, rate:, size:]), dim=1)


def _rotated(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    plain, turned = x[:, None].split([x.shape[1] - cos_sin.shape[1], cos_sin.shape[1]], dim=-1)
    _, turned = rope_interleaved(turned[:, :0], turned, positions, cos_sin)
    return torch.cat((plain, turned), dim=-1).squeeze(1)


def _alike(positions: Tensor, rate: int, selected: Tensor | None) -> Iterator[tuple[Tensor, int]]:
    """The numbers of tokens that are computed at once, and how many entries each is given: by its position alone."""
    counts = torch.zeros_like(positions)
    if rate and selected is not None:
        counts += selected.shape[1]
    elif rate:
        counts = -(-((positions + 1) // rate) // _ENTRIES) * _ENTRIES
    for count in counts.unique().tolist():
        for alike in (counts == count).nonzero()[:, 0].split(_TOKENS):
            yield alike, count


def _attend(q: Tensor, seen: Tensor, valid: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """Attention of ``q`` to what each sees, ``[tokens, seen, head_dim]``, of which only some is ``valid``; float32."""
    count = q.shape[0]
    seen = pad(seen.float().masked_fill(~valid[..., None], 0.0), (0, 0, 0, 0, 0, _TOKENS - count))
    valid = pad(valid, (0, 0, 0, _TOKENS - count))
    logits = pad(q.float(), (0, 0, 0, 0, 0, _TOKENS - count)) @ seen.mT * scale
    logits = logits.masked_fill(~valid[:, None], float("-inf"))
    own = sinks.float()[None, :, None].expand(len(logits), -1, 1)
    shares = torch.cat((logits, own), dim=-1).softmax(dim=-1)[..., :-1]
    return (shares @ seen)[:count]
