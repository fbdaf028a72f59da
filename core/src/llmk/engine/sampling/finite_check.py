"""Finding logits that no token can be drawn from, without waiting for the device: the evidence is read back with the
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import iter_unpack

import torch
from torch import Tensor

from llmk.api import PluginError, RequestError
from llmk.engine.wire.failure import BROKEN_MODEL

FINE = 0
MODEL, NOTHING_ALLOWED = -1, -2
"""States of rows. Those of logits processors follow: two for each, in the order of their names."""
_FIRST_PROCESSOR = -3

_NUMBERS = {torch.float32: ("I", 0x7F800000), torch.bfloat16: ("H", 0x7F80), torch.float16: ("H", 0x7C00)}
"""By dtype: the integer of its size, and the bits of the exponent, which are all set in numbers that are not finite."""

Problem = tuple[str, ...]
"""Message and code of an error, and the field at fault where there is one."""

_ALL_FORBIDDEN = (
    "no token may be sampled: structured_outputs, allowed_token_ids, logit_bias and logits processors leave none",
    RequestError.code,
)


def greatest(logits: Tensor) -> Tensor:
    """``[rows]``, finite unless a row of ``logits`` (``[rows, vocab]``) has a NaN, a positive infinity, or nothing
    finite: NaN passes through the maximum."""
    return logits.amax(dim=-1)


def chosen(logits: Tensor, token_ids: Tensor) -> Tensor:
    """``[rows]``, the logits of ``token_ids`` (int64 ``[rows]``): with hidden states that are not finite, no logit is.
    It takes less time than :func:`greatest`, which also finds a broken last matrix multiplication."""
    return logits.gather(1, token_ids[:, None]).squeeze(1)


def after_model(logits: Tensor) -> Tensor:
    """The state of each row as the model made it, int64 ``[rows]``."""
    return torch.where(greatest(logits).isfinite(), FINE, MODEL)


def after_processor(state: Tensor, logits: Tensor, number: int) -> Tensor:
    """The state of rows that the processor of that number has changed."""
    top = greatest(logits)
    code = _FIRST_PROCESSOR - 2 * number
    found = torch.where(top.isneginf(), code - 1, torch.where(top.isfinite(), FINE, code))
    return torch.where(state == FINE, found, state)


def pack(token_ids: Tensor, numbers: Tensor, state: Tensor | None = None) -> Tensor:
    """All that is read back of rows, uint8 ``[rows, bytes]``: one copy to the host rather than three."""
    columns = (token_ids, numbers) if state is None else (token_ids, numbers, state)
    return torch.cat([column[:, None].view(torch.uint8) for column in columns], dim=1)


def unpack(packed: Tensor, dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """Tokens and states of packed rows, whose numbers, of that ``dtype``, must be finite. A row without a state of its
    own is as the model made it.

    The bytes are read by Python: for a few rows, a single operator of torch takes longer than all of it.
    """
    letter, exponent = _NUMBERS[dtype]
    stated = packed.shape[1] > 8 + dtype.itemsize
    last = NOTHING_ALLOWED if stated else MODEL
    token_ids, states = [], []
    for token_id, number, *own in iter_unpack(f"=q{letter}{'q' * stated}", packed.cpu().numpy().tobytes()):
        token_ids.append(token_id)
        states.append((own[0] if own else FINE) or (last if number & exponent == exponent else FINE))
    return token_ids, states


def problem(state: int, processors: Sequence[str]) -> Problem:
    """What a row's state says; ``processors`` names those that changed logits, by their numbers."""
    if state == MODEL:
        return BROKEN_MODEL
    if state == NOTHING_ALLOWED:
        return _ALL_FORBIDDEN
    number, forbade = divmod(_FIRST_PROCESSOR - state, 2)
    what = "left no token that may be sampled" if forbade else "returned logits that are NaN or infinite"
    return f"{processors[number]} {what}", PluginError.code
