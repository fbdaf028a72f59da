"""Batch ops against plain Python lists."""

from __future__ import annotations

import random

import torch

from llmk.reference.batch import accept_drafts, append_tokens, build_step, compute_slot_mapping, update_rows


def test_update_rows_writes_runs_of_different_lengths() -> None:
    table = torch.full((4, 6), -1, dtype=torch.int32)
    update_rows(table, torch.tensor([2, 0]), torch.tensor([1, 4]), torch.tensor([3, 2]), torch.tensor([7, 8, 9, 5, 6]))
    assert table.tolist() == [[-1, -1, -1, -1, 5, 6], [-1] * 6, [-1, 7, 8, 9, -1, -1], [-1] * 6]


def test_a_step_agrees_with_lists_on_random_batches() -> None:
    rng = random.Random(3)
    for _ in range(50):
        num_slots, width, block_size = rng.randint(1, 7), rng.randint(4, 40), rng.choice([1, 3, 16])
        tokens = torch.randint(0, 1000, (num_slots, width), dtype=torch.int32)
        done = [rng.randint(0, width - 1) for _ in range(num_slots)]
        slots = rng.sample(range(num_slots), rng.randint(1, num_slots))
        counts = [rng.randint(1, width - done[slot]) for slot in slots]
        table = torch.randperm(num_slots * width)[: num_slots * width].reshape(num_slots, width).to(torch.int32)

        computed = torch.tensor(done)
        padding, spare = rng.choice([0, 0, 1, 3]), rng.choice([0, 0, 2])
        padded = torch.tensor(slots + [-1] * padding)
        step = build_step(tokens, computed, padded, torch.tensor(counts + [0] * padding), sum(counts) + spare)
        blocks, where = compute_slot_mapping(table, padded, step.rows, step.positions, block_size, width)
        assert torch.equal(blocks[: len(slots)], table[slots])
        assert all(t.tolist()[sum(counts) :] == [0] * spare for t in (step.token_ids, step.positions))
        assert step.rows.tolist()[sum(counts) :] == where.tolist()[sum(counts) :] == [-1] * spare
        assert step.query_start.tolist()[len(slots) :] == [sum(counts)] * (padding + 1)
        assert step.seq_lens.tolist()[len(slots) :] == [0] * padding

        positions = [p for slot, n in zip(slots, counts, strict=True) for p in range(done[slot], done[slot] + n)]
        owner = [slot for slot, n in zip(slots, counts, strict=True) for _ in range(n)]
        total = len(positions)
        assert step.positions.tolist()[:total] == positions
        assert step.token_ids.tolist()[:total] == [tokens[s, p].item() for s, p in zip(owner, positions, strict=True)]
        assert step.seq_lens.tolist()[: len(slots)] == [done[slot] + n for slot, n in zip(slots, counts, strict=True)]
        assert step.query_start.tolist()[: len(slots) + 1] == [sum(counts[:i]) for i in range(len(counts) + 1)]
        expected = [
            table[s, p // block_size].item() * block_size + p % block_size
            for s, p in zip(owner, positions, strict=True)
        ]
        assert where.tolist()[:total] == expected
        for slot, n in zip(slots, counts, strict=True):
            done[slot] += n
        assert computed.tolist() == done


def test_appended_tokens_are_read_by_the_next_step() -> None:
    tokens = torch.zeros(3, 8, dtype=torch.int32)
    computed = torch.tensor([2, 0, 5])
    slots = torch.tensor([2, 0])
    append_tokens(tokens, computed, slots, torch.tensor([77, 88]))
    step = build_step(tokens, computed, slots, torch.tensor([1, 1]), 2)
    assert step.token_ids.tolist() == [77, 88]


def test_padding_appends_nothing() -> None:
    tokens = torch.arange(12, dtype=torch.int32).view(3, 4)
    append_tokens(tokens, torch.tensor([1, 2, 3]), torch.tensor([2, -1, -1]), torch.tensor([77, 88, 99]))
    assert tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 77]]


def test_drafts_are_kept_up_to_the_first_that_was_not_sampled() -> None:
    rng = random.Random(5)
    for _ in range(60):
        num_slots, width, most = rng.randint(1, 8), 40, rng.randint(1, 6)
        tokens = [[rng.randrange(3) for _ in range(width)] for _ in range(num_slots)]
        computed = [rng.randint(most, width - 1) for _ in range(num_slots)]
        slots = rng.sample(range(num_slots), rng.randint(1, num_slots))
        counts = [rng.randint(1, most) for _ in slots]
        sampled = [[rng.randrange(3) for _ in range(count)] for count in counts]
        padding = rng.choice([0, 2])
        table, lengths = torch.tensor(tokens, dtype=torch.int32), torch.tensor(computed)
        gained = accept_drafts(
            table,
            lengths,
            torch.tensor(slots + [-1] * padding),
            torch.tensor([sum(counts[:i]) for i in range(len(counts))] + [0] * padding),
            torch.tensor(counts + [0] * padding),
            torch.tensor([token for row in sampled for token in row]),
            most,
        )
        expected = []
        for slot, count, row in zip(slots, counts, sampled, strict=True):
            start = computed[slot] - count + 1
            accepted = 0
            while accepted < count - 1 and row[accepted] == tokens[slot][start + accepted]:
                accepted += 1
            computed[slot] = start + accepted
            tokens[slot][computed[slot]] = row[accepted]
            expected.append(accepted + 1)
        assert gained.tolist() == expected + [0] * padding
        assert lengths.tolist() == computed
        assert table.tolist() == tokens
