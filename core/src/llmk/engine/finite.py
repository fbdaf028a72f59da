"""Finding logits that no token can be drawn from, without waiting for the device: what was wrong with a row stands in
its token's place when that is read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llmk.api import PluginError, RequestError
from llmk.engine.failure import BROKEN_MODEL

FINE = 0
MODEL, NOTHING_ALLOWED = -1, -2
"""What stands in a token's place. Those of logits processors follow: two for each, in the order of their names."""
_FIRST_PROCESSOR = -3

Problem = tuple[str, str]
"""Message and code of an error."""

_ALL_FORBIDDEN = (
    "no token may be sampled: what the request allows, biases and forbids leaves none",
    RequestError.code,
)


def marked(logits: Tensor, token_ids: Tensor) -> Tensor:
    """``token_ids`` (int64 ``[rows]``), drawn from ``logits`` as the model made them (``[rows, vocab]``), with
    :data:`MODEL` in place of each whose row has a NaN, a positive infinity, or nothing finite."""
    # The greatest element tells all three: NaN passes through the maximum.
    return torch.where(logits.amax(dim=-1).isfinite(), token_ids, MODEL)


def after_model(logits: Tensor) -> Tensor:
    """The state of each row as the model made it, int64 ``[rows]``."""
    return torch.where(logits.amax(dim=-1).isfinite(), FINE, MODEL)


def after_processor(state: Tensor, logits: Tensor, number: int) -> Tensor:
    """The state of rows that the processor of that number has changed."""
    top = logits.amax(dim=-1)
    code = _FIRST_PROCESSOR - 2 * number
    found = torch.where(top.isneginf(), code - 1, torch.where(top.isfinite(), FINE, code))
    return torch.where(state == FINE, found, state)


def told(state: Tensor, logits: Tensor, token_ids: Tensor) -> Tensor:
    """``token_ids``, drawn from ``logits`` after all that changes them, with the ``state`` of each row in its place
    where that is not :data:`FINE`."""
    state = torch.where((state == FINE) & ~logits.amax(dim=-1).isfinite(), NOTHING_ALLOWED, state)
    return torch.where(state == FINE, token_ids, state)


def problem(code: int, processors: Sequence[str]) -> Problem:
    """What a number in a token's place says; ``processors`` names those that changed logits, by their numbers."""
    if code == MODEL:
        return BROKEN_MODEL
    if code == NOTHING_ALLOWED:
        return _ALL_FORBIDDEN
    number, forbade = divmod(_FIRST_PROCESSOR - code, 2)
    what = "left no token that may be sampled" if forbade else "returned logits that are NaN or infinite"
    return f"{processors[number]} {what}", PluginError.code
