"""Ops on the persistent batch state on the device: apply updates, build a step's input tensors, append tokens.

All of them use only index tensors and never synchronize with the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class StepTensors(NamedTuple):
    """A step's input tensors, from :func:`build_step`. Requests are consecutive along the token axis."""

    token_ids: Tensor
    """int64 ``[tokens]``."""
    positions: Tensor
    """int64 ``[tokens]``, counted from 0 in each request."""
    query_start: Tensor
    """int32 ``[requests + 1]``."""
    seq_lens: Tensor
    """int32 ``[requests]``, tokens in the cache after this step."""
    rows: Tensor
    """int64 ``[tokens]``, index of each token's request within the step; -1 for padding."""


def update_rows(table: Tensor, rows: Tensor, starts: Tensor, lengths: Tensor, values: Tensor) -> None:
    """Writes runs of different lengths into rows of ``table``, in place.

    Run ``i`` is the next ``lengths[i]`` entries of ``values`` and is written to ``table[rows[i], starts[i]:]``.

    Args:
        table: ``[slots, width]``, any integer dtype.
        rows, starts, lengths: int64 ``[runs]``.
        values: int64 ``[lengths.sum()]``.
    """
    total = values.shape[0]
    run = torch.repeat_interleave(lengths, output_size=total)
    first = torch.cumsum(lengths, 0) - lengths
    column = starts[run] + torch.arange(total, device=table.device) - first[run]
    table[rows[run], column] = values.to(table.dtype)


def build_step(tokens: Tensor, computed: Tensor, slots: Tensor, counts: Tensor, num_tokens: int) -> StepTensors:
    """Builds the input tensors for the next ``counts[i]`` tokens of every slot in ``slots``, and adds the counts to
    ``computed``, in place.

    Padding requests come last: their slot is -1, their count 0; they have no tokens and a length of 0. Padding tokens
    come last, too: token 0 at position 0.

    Args:
        tokens: int32 ``[slots, max_len]``, every known token of each slot.
        computed: int64 ``[slots]``, tokens of each slot whose state is in the cache; advanced by ``counts``.
        slots, counts: int64 ``[requests]``.
        num_tokens: ``counts.sum()``, known on the host; larger if tokens are padded.
    """
    ends = torch.cumsum(counts, 0)
    index = torch.arange(num_tokens, device=tokens.device)
    rows = torch.searchsorted(ends, index, right=True)
    is_token = rows < slots.shape[0]
    at = rows.clamp(max=slots.shape[0] - 1)
    before = torch.where(slots < 0, 0, computed[slots])
    positions = torch.where(is_token, index - (ends - counts)[at] + before[at], 0)
    token_ids = torch.where(is_token, tokens[slots[at], positions], 0).to(torch.int64)
    # ``index_add_`` with clamped slots: by plain indexing, padding would write to the last slot.
    computed.index_add_(0, slots.clamp(min=0), counts)
    query_start = torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)
    return StepTensors(
        token_ids, positions, query_start, (before + counts).to(torch.int32), torch.where(is_token, rows, -1)
    )


def compute_slot_mapping(
    table: Tensor, slots: Tensor, rows: Tensor, positions: Tensor, block_size: int, max_blocks: int
) -> tuple[Tensor, Tensor]:
    """A step's block table, int32 ``[requests, max_blocks]``, and its slot mapping, int64 ``[tokens]``: ``block id *
    block_size + offset``, or -1 for padding.

    Args:
        table: int32 ``[slots, width]``, the block table of all slots, ``width >= max_blocks``.
        slots: int64 ``[requests]``; the row of a slot of -1 is undefined.
        rows, positions: int64 ``[tokens]``, as in :class:`StepTensors`.
    """
    block_table = table[slots, :max_blocks]
    block = block_table[rows, positions // block_size].to(torch.int64)
    return block_table, torch.where(rows < 0, -1, block * block_size + positions % block_size)


def append_tokens(tokens: Tensor, computed: Tensor, slots: Tensor, sampled: Tensor) -> None:
    """Writes ``sampled`` (int64 ``[requests]``) at ``tokens[slots, computed[slots]]``, in place, where the next step
    reads them. Slots below 0 are padding and are skipped. ``computed`` is int64 ``[slots]``."""
    padding = slots < 0
    slots = slots.clamp(min=0)
    positions = computed[slots].masked_fill(padding, 0)
    tokens[slots, positions] = torch.where(padding, tokens[0, 0], sampled.to(tokens.dtype))


def accept_drafts(
    tokens: Tensor, computed: Tensor, slots: Tensor, starts: Tensor, counts: Tensor, sampled: Tensor, most: int
) -> Tensor:
    """Accepts drafts as long as they equal what was sampled in their place, reduces ``computed`` by those that were
    rejected, and writes the token behind the accepted ones where the next step reads it; both in place.

    Request ``i`` has ``counts[i] - 1`` drafts, the last of the tokens that its slot has computed. ``sampled[starts[i] +
    j]`` was sampled in place of draft ``j``, given the drafts before it; the last of the request's ``counts[i]`` rows
    behind all of them. So what is kept is what would have been sampled one token at a time (Leviathan et al., "Fast
    Inference from Transformers via Speculative Decoding", 2023, with equality in place of its rejection sampling).

    Args:
        tokens: int32 ``[slots, max_len]``.
        computed: int64 ``[slots]``, drafts included.
        slots, starts, counts: int64 ``[requests]``; slots below 0 are padding and are skipped.
        sampled: int64 ``[samples]``.
        most: the greatest of ``counts``, known on the host.

    Returns:
        int64 ``[requests]``, how many tokens each request gained: 1 and the accepted drafts; 0 for padding.
    """
    padding, at = slots < 0, slots.clamp(min=0)
    num_drafts = (counts - 1).clamp(min=0)
    column = torch.arange(most, device=tokens.device)
    found = sampled[(starts[:, None] + column).clamp(max=sampled.shape[0] - 1)]
    places = ((computed[at] - num_drafts)[:, None] + column).clamp(min=0, max=tokens.shape[1] - 1)
    equal = (found == tokens[at[:, None], places]) & (column < num_drafts[:, None])
    accepted = equal.to(torch.int64).cumprod(dim=1).sum(dim=1)
    computed.index_add_(0, at, torch.where(padding, 0, accepted - num_drafts))
    append_tokens(tokens, computed, slots, found.gather(1, accepted[:, None]).squeeze(1))
    return torch.where(padding, 0, accepted + 1)
