"""Sampling penalties that touch only the logits of tokens that a request has: its tokens are sorted, and counted by
binary search, so that the work and the memory depend on the length of texts and not on the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    tokens: Tensor,
    slots: Tensor,
    prompt_lengths: Tensor,
    known: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> Tensor:
    """Repetition, frequency and presence penalties, in place, as ``llmk.reference.sampling.sample.apply_penalties``.

    The repetition penalty is over prompt and output: positive logits are divided by it, others multiplied. From the
    logits of tokens of the output, ``frequency`` times their count and ``presence`` are then subtracted.

    Args:
        logits: float32 ``[R, V]``.
        rows: int64 ``[M]``, the rows of the requests with penalties, each once.
        tokens: int32 ``[slots, L]``; ``V`` stands for an embedding in place of a token.
        slots: int64 ``[M]``, the requests' rows of ``tokens``.
        prompt_lengths, known: int64 ``[M]``, where the prompt and all tokens of a request end.
        presence, frequency, repetition: float32 ``[M]``.

    Returns:
        ``logits``.
    """
    ids, counts, present = _count(tokens[slots], prompt_lengths, known, logits.shape[1])
    places = (rows[:, None].expand_as(ids), ids)
    old = logits[places]
    factor = torch.where(present, repetition[:, None], 1.0)
    new = torch.where(old > 0, old / factor, old * factor)
    new -= frequency[:, None] * counts
    new -= presence[:, None] * (counts > 0)
    # A token that a request has several times is written as often, with the same value.
    return logits.index_put_(places, new)


def _count(tokens: Tensor, prompt_lengths: Tensor, known: Tensor, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each place of ``tokens`` (int32 ``[M, L]``): an id, how often it is in the output, and whether the request
    has it at all. Places behind a request's tokens, and those of embeddings, repeat its least id; in rows without ids,
    they have one that is not present.

    An id and whether it is in the output are one number, ``2 * id + is_output``, so that a sorted row has an id's
    places side by side, those of the prompt first. Nothing waits for the device.
    """
    column = torch.arange(tokens.shape[1], device=tokens.device)
    is_output = column >= prompt_lengths[:, None]
    counted = (column < known[:, None]) & (tokens < vocab)
    keys = torch.where(counted, 2 * tokens + is_output, 2 * vocab).sort(dim=1).values
    ids = torch.where(keys < 2 * vocab, keys, keys[:, :1]) >> 1
    first = torch.searchsorted(keys, 2 * ids + 1, out_int32=True)
    behind = torch.searchsorted(keys, 2 * ids + 1, right=True, out_int32=True)
    present = ids < vocab
    return ids.clamp(max=vocab - 1).long(), behind - first, present
