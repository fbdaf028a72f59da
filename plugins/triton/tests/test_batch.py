"""Batch ops against the reference, on random batches with padding, at places that fill no block."""

from __future__ import annotations

import random

import pytest
import torch

from llmk.reference import batch as reference
from llmk.reference.examples.batch import ACCEPT_DRAFTS
from llmk.reference.op_examples import Draw
from llmk_triton.batch import batch_state as batch


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks for what is small enough to interpret."""
    monkeypatch.setattr(batch, "_BLOCK", 16)


@pytest.mark.parametrize("seed", range(12))
def test_step_tensors_equal_the_references(seed: int) -> None:
    rng = random.Random(seed)
    num_slots, width, block_size = rng.randint(1, 30), rng.randint(4, 60), rng.choice([1, 3, 16])
    done = [rng.randint(0, width - 1) for _ in range(num_slots)]
    slots = rng.sample(range(num_slots), rng.randint(1, num_slots))
    counts = [rng.randint(1, width - done[slot]) if seed % 2 else 1 for slot in slots]
    padding, spare = rng.choice([0, 1, 20]), rng.choice([0, 2, 40])
    tokens = torch.randint(0, 1000, (num_slots, width), dtype=torch.int32)
    table = torch.randperm(num_slots * (width + 5)).reshape(num_slots, width + 5).to(torch.int32)
    packed = torch.tensor([*slots, *[-1] * padding, *counts, *[0] * padding])
    at = packed.split(len(slots) + padding)
    computed = [torch.tensor(done) for _ in range(2)]
    max_blocks = -(-max(done[slot] + count for slot, count in zip(slots, counts, strict=True)) // block_size)
    steps = [
        op.build_step(tokens, c, *at, sum(counts) + spare) for op, c in zip((batch, reference), computed, strict=True)
    ]
    for field, actual, expected in zip(steps[0]._fields, *steps, strict=True):
        assert actual.dtype == expected.dtype, field
        assert torch.equal(actual, expected), field
    assert torch.equal(*computed)
    step = steps[0]
    (blocks, where), expected = (
        op.compute_slot_mapping(table, at[0], step.rows, step.positions, block_size, max_blocks)
        for op in (batch, reference)
    )
    assert torch.equal(blocks[: len(slots)], expected[0][: len(slots)])
    assert torch.equal(where, expected[1])


def test_tokens_are_appended_after_the_computed_ones_and_padding_is_skipped() -> None:
    tokens = [torch.zeros(40, 8, dtype=torch.int32) for _ in range(2)]
    slots = torch.randperm(40)[:30]
    slots[25:] = -1
    computed, sampled = torch.randint(1, 8, (40,)), torch.arange(30) + 100
    for op, target in zip((batch, reference), tokens, strict=True):
        op.append_tokens(target, computed, slots, sampled)
    assert torch.equal(*tokens)
    assert int((tokens[0] > 0).sum()) == 25


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_accepted_as_by_the_reference(seed: int) -> None:
    draw = Draw(torch.Generator().manual_seed(seed), torch.float32)
    arguments = ACCEPT_DRAFTS.make(draw, {}, 1 + 7 * seed)
    outcomes = []
    for op in (batch, reference):
        tokens, computed, *rest = arguments
        tokens, computed = tokens.clone(), computed.clone()
        outcomes.append((op.accept_drafts(tokens, computed, *rest), tokens, computed))
    for actual, expected in zip(*outcomes, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_runs_of_different_lengths_are_written(dtype: torch.dtype) -> None:
    lengths = torch.tensor([0, 40, 3, 17, 0, 1])
    rows, starts = torch.tensor([5, 0, 2, 4, 1, 3]), torch.tensor([3, 9, 0, 33, 2, 49])
    tables = [torch.full((6, 50), -1, dtype=dtype) for _ in range(2)]
    for op, table in zip((batch, reference), tables, strict=True):
        op.update_rows(table, rows, starts, lengths, torch.arange(61))
    assert torch.equal(*tables)
    batch.update_rows(tables[0], rows[:0], rows[:0], rows[:0], rows[:0])
