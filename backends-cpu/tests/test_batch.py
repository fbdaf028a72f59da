"""The batch's state around a step, against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from levels import LIBRARY, at_level
from torch import Tensor

from llmk.reference import batch as reference
from llmk.reference.sampling.sample import sample as reference_sample
from llmk_cpu.native.batch import append_tokens, build_step, compute_slot_mapping, sample

SLOTS, LENGTH, BLOCK = 6, 40, 8


@pytest.fixture(params=LIBRARY.levels)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with at_level(request.param, monkeypatch) as modules:
        yield modules


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1, 31, 1000, 5003])
def test_tokens_are_drawn_as_by_the_reference(size: int, dtype: torch.dtype, kernels: Any) -> None:
    """Flat and peaked rows, ties, excluded tokens; each with every truncation."""
    rows, native = 60, kernels["batch"].sample
    logits = (torch.randn(rows, size + 3) * torch.tensor([0.1, 3.0, 20.0]).repeat(20)[:, None]).to(dtype)[:, 3:]
    logits[::7] = logits[::7].round()
    logits[1::7, : size // 2] = -torch.inf
    temperature = torch.tensor([1.0, 0.7, 0.0, 2.0, 1e-3]).repeat(12)
    seeds, positions = torch.randint(-(2**62), 2**62, (rows,)), torch.randint(0, 5000, (rows,))
    top_k = torch.tensor([0, 1, 5, 50, 9999])[torch.randint(5, (rows,))]
    top_p = torch.tensor([1.0, 0.5, 0.95, 1e-6, 0.0])[torch.randint(5, (rows,))]
    min_p = torch.tensor([0.0, 0.2, 1.0])[torch.randint(3, (rows,))]
    for cuts in itertools.product((None, top_k), (None, top_p), (None, min_p)):
        args = logits, temperature, *cuts, seeds, positions
        assert torch.equal(native(*args), reference_sample(*args))


def test_a_row_without_a_distribution_gives_a_token(kernels: Any) -> None:
    logits, seeds = torch.tensor([[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3]), torch.arange(3)
    found = kernels["batch"].sample(logits, torch.ones(3), None, torch.full((3,), 0.9), None, seeds, seeds)
    assert ((found >= 0) & (found < 3)).all()


def test_a_row_draws_the_same_in_any_batch(kernels: Any) -> None:
    logits, seeds = torch.randn(40, 500), torch.arange(40)
    args = logits, torch.ones(40), seeds, torch.full((40,), 0.9), None, seeds, seeds
    alone = [kernels["batch"].sample(*(None if each is None else each[i : i + 1] for each in args)) for i in range(40)]
    assert torch.equal(kernels["batch"].sample(*args), torch.cat(alone))
