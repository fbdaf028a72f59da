"""The inputs of drafts that recurrent layers keep until it is known which drafts are accepted
(:class:`~llmk.api.DraftTails`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from llmk.api.cache import CacheStep


def with_accepted(
    inputs: Sequence[Tensor], tails: Sequence[Tensor], step: CacheStep
) -> tuple[list[Tensor], CacheStep, Tensor]:
    """Puts the accepted inputs in each request's tail before its own in this step, and the inputs of its drafts in the
    tail.

    Waits for nothing: there are as many rows as if all of each tail were accepted, of which those that are too many
    come last, as padding.

    Args:
        inputs: ``[tokens, ...]`` each.
        tails: ``[slots + 1, most, ...]`` each, in the same order; changed in place.
        step: a step with tails.

    Returns:
        The inputs and the step with these rows, and the row of each token of ``step``, int64 ``[tokens]``.
    """
    assert step.tails is not None, "the caller has looked"
    slots, accepted, num_drafts = step.tails.slots, step.tails.accepted, step.tails.num_drafts
    first, stop = step.query_start[:-1].long(), step.query_start[1:].long()
    added = accepted.cumsum(0)
    ends = stop + added
    most, last = tails[0].shape[1], step.num_requests - 1
    total = step.num_tokens + step.num_requests * most
    row = torch.arange(total, device=first.device)
    request = torch.searchsorted(ends, row, right=True).clamp(max=last)
    at = row - (first + added)[request]  # in this step; negative: in the tail
    own = (first[request] + at).clamp(0, step.num_tokens - 1)
    place = (accepted[request] + at).clamp(0, most - 1)
    drafts = (stop - num_drafts)[:, None] + torch.arange(most, device=first.device)
    drafts = drafts.clamp(0, step.num_tokens - 1)
    extended = []
    for rows, tail in zip(inputs, tails, strict=True):
        is_kept = (at < 0).view(-1, *[1] * (rows.dim() - 1))
        extended.append(torch.where(is_kept, tail[slots[request], place].to(rows.dtype), rows[own]))
        tail[slots] = rows[drafts].to(tail.dtype)
    wider = replace(
        step,
        query_start=pad(ends, (1, 0)).to(torch.int32),
        slot_mapping=pad(step.slot_mapping, (0, total - step.num_tokens), value=-1),
        num_tokens=total,
        max_query_len=step.max_query_len + most,
        host_query_lens=(),
        host_seq_lens=(),
    )
    token = row[: step.num_tokens]
    return extended, wider, token + added[torch.searchsorted(stop, token, right=True).clamp(max=last)]
