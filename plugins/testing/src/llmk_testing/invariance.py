"""The conformance check of kernels that declare ``deterministic``. Call :func:`check_rows` from a test of your own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def check_rows(function: Callable[[Tensor], Tensor], rows: Tensor, *, trials: int = 40, seed: int = 0) -> None:
    """Checks batch invariance: each row of ``function(rows)`` must be bit-identical in other batches: alone, with any
    number of other rows in any order, and in memory of any alignment.

    ``function`` maps ``[N, ...]`` to ``[N, ...]``. For a GEMM, use rows whose sums cancel
    (:func:`llmk.reference.tiles.cancelling`): they reveal a different order of summation even if the result is rounded
    to 16 bits. Check with one thread and with several (``torch.set_num_threads``).

    Raises ``AssertionError`` with the first batch in which a row differs.
    """
    random = torch.Generator().manual_seed(seed)
    expected, total = function(rows), rows.shape[0]
    for trial in range(trials):
        count = trial + 1 if trial < 5 else int(torch.randint(1, total + 1, (1,), generator=random))
        chosen = torch.randperm(total, generator=random)[: min(count, total)].to(rows.device)
        offset = int(torch.randint(0, 8, (1,), generator=random))
        batch = _at_offset(rows[chosen], offset)
        wrong = (function(batch) != expected[chosen]).flatten(1).any(dim=1)
        if bool(wrong.any()):
            which = chosen[wrong].tolist()
            raise AssertionError(
                f"rows {which} of {total} differ in a batch of {len(chosen)}, {offset} elements off alignment, from"
                " those in a batch of all"
            )


def _at_offset(rows: Tensor, offset: int) -> Tensor:
    """A copy of ``rows`` that starts ``offset`` elements after an aligned address."""
    memory = torch.empty(offset + rows.numel(), dtype=rows.dtype, device=rows.device)
    return memory[offset:].view(rows.shape).copy_(rows)
