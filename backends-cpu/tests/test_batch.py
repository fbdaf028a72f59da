"""The batch's state around a step, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmk.reference import batch as reference
from llmk.reference.sampling.sample import sample as reference_sample
from llmk_cpu.native.batch import append_tokens, build_step, compute_slot_mapping, sample

SLOTS, LENGTH, BLOCK = 6, 40, 8


def state() -> tuple[Tensor, Tensor]:
    """Tokens, of which rows are part of wider ones, and how many are computed."""
    wide = torch.randint(0, 1000, (SLOTS, LENGTH + 5), dtype=torch.int32)
    return wide[:, :LENGTH], torch.randint(0, 20, (SLOTS,))


@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("counts", [[1], [1, 1, 1, 0], [5, 1, 9, 0, 0], [0]])
def test_a_step_is_laid_out_as_by_the_reference(counts: list[int], spare: int) -> None:
    tokens, computed = state()
    slots = torch.tensor([slot if count else -1 for slot, count in zip((4, 0, 5, 2, 1), counts, strict=False)])
    given, num_tokens = torch.tensor(counts), sum(counts) + spare
    mirror = computed.clone()
    found = build_step(tokens, computed, slots, given, num_tokens)
    expected = reference.build_step(tokens, mirror, slots, given, num_tokens)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert torch.equal(computed, mirror)
    table = torch.randint(0, 99, (SLOTS, 7), dtype=torch.int32)
    args = table, slots, expected.rows, expected.positions, BLOCK, 5
    (blocks, places), (right, right_places) = compute_slot_mapping(*args), reference.compute_slot_mapping(*args)
    assert torch.equal(blocks[slots >= 0], right[slots >= 0])
    assert torch.equal(places, right_places)
    sampled, again = torch.randint(0, 1000, (len(slots),)), tokens.clone()
    append_tokens(tokens, computed, slots, sampled)
    reference.append_tokens(again, computed, slots, sampled)
    assert torch.equal(tokens, again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1, 7, 4096, 4099, 20_001])
def test_the_most_likely_token_is_the_first_of_the_greatest(size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(9, size + 3).to(dtype)[:, 3:]
    logits[0] = -3
    logits[1, torch.randint(0, size, (4,))] = 60
    logits[2, -1] = 60
    logits[3] = -torch.inf
    logits[4, : size // 2] = -torch.inf
    logits[5, size // 2 :] = torch.inf
    logits[6, size // 2] = torch.nan
    logits[7, 0], logits[7, -1] = torch.inf, torch.nan
    none = (None,) * 6
    assert torch.equal(sample(logits, *none), reference_sample(logits, *none))


def test_other_rows_are_drawn_as_by_the_reference() -> None:
    logits, seeds = torch.randn(3, 50), torch.arange(3)
    args = logits, torch.tensor([0.0, 1.0, 0.7]), None, None, None, seeds, seeds + 5
    assert torch.equal(sample(*args), reference_sample(*args))
