"""Ops on the batch state that lives on the device for as long as requests do: apply what changed, lay out a step,
append tokens.

All of them work on index tensors alone and never wait for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class StepTensors(NamedTuple):
    """A step laid out by :func:`build_step`. Requests lie one after the other along the token axis."""

    token_ids: Tensor
    """int64 ``[tokens]``."""
    positions: Tensor
    """int64 ``[tokens]``, counted from 0 in each request."""
    query_start: Tensor
    """int32 ``[requests + 1]``."""
    seq_lens: Tensor
    """int32 ``[requests]``, tokens in the cache once this step has run."""
    rows: Tensor
    """int64 ``[tokens]``, index of each token's request within the step."""


def update_rows(table: Tensor, rows: Tensor, starts: Tensor, lengths: Tensor, values: Tensor) -> None:
    """Writes ragged runs into rows of ``table``, in place.

    Run ``i`` is the next ``lengths[i]`` entries of ``values`` and lands at ``table[rows[i], starts[i]:]``.

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
    """Lays out the next ``counts[i]`` tokens of every slot in ``slots``, and counts them as computed, in place.

    Args:
        tokens: int32 ``[slots, max_len]``, every known token of each slot.
        computed: int64 ``[slots]``, tokens of each slot whose state is in the cache; advanced by ``counts``.
        slots, counts: int64 ``[requests]``.
        num_tokens: ``counts.sum()``, known on the host.
    """
    rows = torch.repeat_interleave(counts, output_size=num_tokens)
    ends = torch.cumsum(counts, 0)
    before = computed[slots]
    positions = torch.arange(num_tokens, device=tokens.device) - (ends - counts)[rows] + before[rows]
    token_ids = tokens[slots[rows], positions].to(torch.int64)
    after = before + counts
    computed[slots] = after
    query_start = torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)
    return StepTensors(token_ids, positions, query_start, after.to(torch.int32), rows)


def map_slots(block_table: Tensor, rows: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Where each token's state lies in the cache: int64 ``[tokens]``, ``block id * block_size + offset``.

    Args:
        block_table: int32 ``[requests, max_blocks]``.
        rows, positions: int64 ``[tokens]``, as in :class:`StepTensors`.
    """
    block = block_table[rows, positions // block_size].to(torch.int64)
    return block * block_size + positions % block_size


def append_tokens(tokens: Tensor, slots: Tensor, positions: Tensor, sampled: Tensor) -> None:
    """Writes ``sampled`` (int64 ``[requests]``) at ``tokens[slots, positions]``, in place, where the next step reads
    them."""
    tokens[slots, positions] = sampled.to(tokens.dtype)
