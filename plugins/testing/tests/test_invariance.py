"""The check of batch invariance itself, on functions that have it and on functions that lack it in one way each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llmk_testing.invariance import check_rows

ROWS = torch.randn(40, 6)


def test_accepts_batch_invariant_functions() -> None:
    check_rows(lambda rows: rows.sort(dim=1).values, ROWS)


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows + (len(rows) == 1),
        lambda rows: rows + (len(rows) > 30) * 1e-7,
        lambda rows: rows + torch.arange(len(rows))[:, None] // 20,
        lambda rows: rows - rows.mean(dim=0),
        lambda rows: rows + (rows.data_ptr() % 64 != 0),
    ],
    ids=["alone", "many", "place", "content", "alignment"],
)
def test_rejects_batch_dependent_functions(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AssertionError, match="of 40 differ in a batch of"):
        check_rows(function, ROWS)
