"""Sampling: distributions, seeds, ties, truncation and penalties against ``transformers``' own processors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from llmk.reference.sampling import sample as sampling
from llmk.reference.sampling.counter_rng import uniform_bits
from llmk.reference.sampling.sample import (
    allow_tokens,
    apply_bias,
    apply_mask,
    apply_penalties,
    logprobs,
    mask_top_k_top_p_min_p,
    match_suffixes,
    sample,
)


def spread(rows: int, vocab: int, seed: int = 0) -> Tensor:
    """Logits with no two equal in a row."""
    random = torch.Generator().manual_seed(seed)
    steps = torch.stack([torch.randperm(vocab, generator=random) for _ in range(rows)])
    return steps.float() * (12.0 / vocab) - 6.0


def draw(logits: Tensor, count: int, temperature: float = 1.0, seed: int = 0, **masks: Tensor) -> Tensor:
    """``count`` tokens from one distribution, at positions 0 to ``count - 1``."""
    truncation = {name: masks.get(name) for name in ("top_k", "top_p", "min_p")}
    rows = {name: None if value is None else value.expand(count) for name, value in truncation.items()}
    return sample(
        logits.expand(count, -1),
        torch.full((count,), temperature),
        **rows,
        seeds=torch.full((count,), seed),
        positions=torch.arange(count),
    )


def chi_square(tokens: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * len(tokens)
    observed = torch.bincount(tokens, minlength=len(probabilities)).double()
    used = expected > 0
    assert bool((observed[~used] == 0).all())
    return float(((observed - expected)[used].square() / expected[used]).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("seed", [0, 1, -(2**63), 2**63 - 1])
def test_draws_from_the_softmax(temperature: float, seed: int) -> None:
    logits = torch.tensor([[1.5, -0.5, 0.0, float("-inf"), 2.0, 0.3]])
    tokens = draw(logits, 20000, temperature, seed)
    # 4 degrees of freedom: 23.5 is exceeded once in 10,000 times.
    assert chi_square(tokens, torch.softmax(logits[0].double() / temperature, -1)) < 23.5


def test_draws_over_seeds_are_as_independent_as_over_positions() -> None:
    logits = torch.zeros(1, 4).expand(20000, -1)
    ones = torch.ones(20000)
    tokens = sample(logits, ones, None, None, None, torch.arange(20000), torch.full((20000,), 7))
    assert chi_square(tokens, torch.full((4,), 0.25, dtype=torch.float64)) < 21.1
    pairs = tokens[:-1] * 4 + tokens[1:]
    assert chi_square(pairs, torch.full((16,), 1 / 16, dtype=torch.float64)) < 44.3


def test_samples_from_the_truncated_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])
    tokens = draw(logits, 20000, top_k=torch.tensor(3))
    kept = torch.tensor([2.0, 1.0, 0.0, float("-inf"), float("-inf")], dtype=torch.float64)
    assert chi_square(tokens, torch.softmax(kept, -1)) < 18.5


def test_rare_tokens_of_a_large_vocabulary_are_reached() -> None:
    """A flat distribution over 2**18 tokens: the largest sum that the integers must hold."""
    tokens = draw(torch.zeros(1, 1 << 18), 64)
    assert len(set(tokens.tolist())) == 64
    assert 1 << 16 < float(tokens.double().mean()) < 3 << 16


@pytest.mark.parametrize(("bits", "token"), [(0, 1), ((1 << 40) - 1, 3)])
def test_the_ends_of_the_uniform_never_reach_a_forbidden_token(
    bits: int, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "uniform_bits", lambda seeds, positions, count: torch.full_like(seeds, bits))
    forbidden = float("-inf")
    assert draw(torch.tensor([[forbidden, 0.5, 0.0, 0.1, forbidden]]), 2).tolist() == [token, token]


def test_a_row_gives_the_same_token_in_any_batch() -> None:
    logits = torch.randn(23, 3000)
    arguments = (
        torch.rand(23) * 1.5,
        torch.randint(0, 40, (23,)),
        torch.rand(23) * 0.5 + 0.5,
        torch.rand(23) * 0.1,
        torch.randint(-(2**62), 2**62, (23,)),
        torch.randint(0, 5000, (23,)),
    )
    together = sample(logits, *arguments)
    order = torch.randperm(23)
    assert torch.equal(sample(logits[order], *(a[order] for a in arguments)), together[order])
    for row in range(23):
        one = slice(row, row + 1)
        assert int(sample(logits[one], *(a[one] for a in arguments))) == int(together[row])


def test_greedy_rows_take_the_first_of_equals_in_any_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 0.0, 0.0]])
    assert sample(logits, None, None, None, None, None, None).tolist() == [1, 0, 0]
    temperature = torch.tensor([0.0, 1.0, 0.0])
    seeds = positions = torch.arange(3)
    tokens = sample(logits, temperature, torch.tensor([1, 2, 3]), torch.full((3,), 0.1), None, seeds, positions)
    assert tokens[0] == 1
    assert tokens[2] == 0


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits = torch.tensor([[80.0, -80.0, 79.0]])
    tokens = draw(logits, 1000, temperature)
    expected = torch.softmax((logits[0].double() - 80) / temperature, -1)
    assert chi_square(tokens, torch.where(expected < 1e-9, 0, expected)) < 18.5


def test_logits_in_16_bits_are_computed_with_in_float32() -> None:
    logits = spread(4, 2000).to(torch.bfloat16)
    arguments = (torch.full((4,), 0.7), None, torch.full((4,), 0.8), None, torch.arange(4), torch.arange(4))
    assert torch.equal(sample(logits, *arguments), sample(logits.float(), *arguments))
    ids = torch.arange(4)
    assert all(map(torch.equal, logprobs(logits, ids, 3), logprobs(logits.float(), ids, 3)))


def test_sampling_leaves_the_logits_alone() -> None:
    logits = spread(3, 50)
    before = logits.clone()
    draw(logits[:1], 3, top_k=torch.tensor(5), top_p=torch.tensor(0.5), min_p=torch.tensor(0.1))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocab", [7, 100, 1500])
@pytest.mark.parametrize("top_k", [0, 1, 5, 1400])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_truncation_agrees_with_transformers(vocab: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = spread(4, vocab)
    ids: Any = None
    expected = logits.clone()
    if top_k:
        expected = TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(ids, expected)
    out = mask_top_k_top_p_min_p(
        logits, torch.full((4,), top_k), torch.full((4,), top_p), torch.full((4,), min_p) if min_p else None
    )
    assert torch.equal(out, expected)


def test_rows_are_truncated_each_in_its_own_way() -> None:
    logits = spread(5, 1500)
    top_k, top_p = torch.tensor([0, 3, 0, 900, 40]), torch.tensor([1.0, 1.0, 0.4, 0.99, 0.5])
    together = mask_top_k_top_p_min_p(logits, top_k, top_p, None)
    for row in range(5):
        one = slice(row, row + 1)
        assert torch.equal(mask_top_k_top_p_min_p(logits[one], top_k[one], top_p[one], None), together[one])
    assert bool(together[0].isfinite().all())


@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("ties", [False, True])
def test_the_shortlist_gives_what_sorting_everything_gives(
    ties: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are cut within the shortlist, beyond it, by ``min_p`` alone and not at all."""
    rows, vocab = 60, 4000
    logits = spread(rows, vocab) * scale
    if ties:
        logits = (logits * 4).round() / 4
    arguments = (
        torch.tensor([1.0, 0.7, 1.3, 0.0]).repeat(rows // 4),
        torch.tensor([0, 1, 500, 600, 0, 30]).repeat(rows // 6),
        torch.tensor([0.5, 1.0, 0.9, 0.9999, 1.0]).repeat(rows // 5),
        torch.tensor([0.0, 0.2, 0.0]).repeat(rows // 3),
        torch.arange(rows),
        torch.arange(rows) * 7,
    )
    quick = sample(logits, *arguments)
    monkeypatch.setattr(sampling, "_SHORTLIST", vocab)
    assert torch.equal(quick, sample(logits, *arguments))


@pytest.mark.parametrize("vocab", [6, 2000])
def test_ties_are_kept_together(vocab: int) -> None:
    logits = torch.full((1, vocab), -9.0)
    logits[0, [5, 1, 2, 4]] = torch.tensor([3.0, 2.0, 2.0, 2.0])
    kept = mask_top_k_top_p_min_p(logits, torch.tensor([2]), None, None).isfinite()
    assert kept.nonzero()[:, 1].tolist() == [1, 2, 4, 5]
    kept = mask_top_k_top_p_min_p(logits, None, torch.tensor([0.5]), None).isfinite()
    assert kept.nonzero()[:, 1].tolist() == [1, 2, 4, 5]


def test_embeddings_in_a_prompt_are_not_counted() -> None:
    """They have the vocabulary's size as id, also where it is left of an earlier request."""
    logits, row = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([0])
    tokens = torch.tensor([[3, 7, 7, 5, 7]], dtype=torch.int32)
    strength = [torch.tensor([value]) for value in (0.5, 0.25, 1.5)]
    found = apply_penalties(logits.clone(), row, tokens, row, torch.tensor([3]), torch.tensor([4]), *strength)
    same = tokens[:, [0, 3]].contiguous()
    expected = apply_penalties(logits.clone(), row, same, row, torch.tensor([1]), torch.tensor([2]), *strength)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.7])
def test_repetition_penalty_agrees_with_transformers(penalty: float) -> None:
    logits, tokens = torch.randn(1, 20), torch.tensor([[3, 3, 7, 7, 11]], dtype=torch.int32)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(tokens.long(), logits.clone())
    row, zero = torch.tensor([0]), torch.zeros(1)
    lengths = torch.tensor([3]), torch.tensor([5])
    out = apply_penalties(logits, row, tokens, row, *lengths, zero, zero, torch.tensor([penalty]))
    torch.testing.assert_close(out, expected)


def test_presence_and_frequency_look_at_the_output_alone() -> None:
    logits = torch.tensor([[1.0, -1.0, 2.0, 0.5], [9.0, 9.0, 9.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
    tokens = torch.tensor([[1, 3, 3, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 2, 1]], dtype=torch.int32)
    out = apply_penalties(
        logits,
        torch.tensor([0, 2]),
        tokens,
        torch.tensor([2, 0]),
        torch.tensor([1, 1]),
        torch.tensor([5, 3]),
        torch.tensor([0.5, 0.0]),
        torch.tensor([0.25, 1.0]),
        torch.tensor([1.0, 2.0]),
    )
    expected = [[1.0, -1.0 - 0.75 - 0.5, 2.0 - 0.25 - 0.5, 0.5], [9.0] * 4, [1.0, 0.5, 1.0, 0.5 - 2.0]]
    assert out is logits
    torch.testing.assert_close(out, torch.tensor(expected))


def test_bias_adds_in_place_and_forbids() -> None:
    logits = torch.zeros(2, 5)
    out = apply_bias(
        logits,
        torch.tensor([0, 1, 1, 1]),
        torch.tensor([2, 0, 4, 4]),
        torch.tensor([1.5, float("-inf"), 1.0, 2.0]),
    )
    assert out is logits
    assert out.tolist() == [[0, 0, 1.5, 0, 0], [float("-inf"), 0, 0, 0, 3]]


def test_suffixes_are_found_between_start_and_end() -> None:
    tokens = torch.tensor([[1, 2, 3, 2, 3, 9], [3, 3, 3, 0, 0, 0]], dtype=torch.int32)
    cases = [
        (0, 0, 5, (-1, 2, 3), True),
        (0, 0, 5, (3, 2, 3), True),
        (0, 0, 5, (1, 2, 3), False),
        (0, 0, 6, (-1, 3, 9), True),
        (0, 3, 5, (-1, 2, 3), True),
        (0, 3, 5, (3, 2, 3), False),
        (1, 0, 2, (3, 3, 3), False),
        (1, 0, 3, (3, 3, 3), True),
        (1, 0, 0, (-1, -1, 0), False),
        (1, 2, 2, (-1, -1, -1), True),
    ]
    slots, starts, ends, suffixes, expected = zip(*cases, strict=True)
    found = match_suffixes(tokens, *map(torch.tensor, (slots, starts, ends, suffixes)))
    assert found.tolist() == list(expected)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 64, 1000])
def test_packed_masks_exclude_tokens(vocab: int) -> None:
    random, rows = torch.Generator().manual_seed(vocab), torch.tensor([4, 0, 2])
    logits, allowed = torch.randn(5, vocab, generator=random), torch.rand(3, vocab, generator=random) < 0.5
    words = [[0] * -(-vocab // 32) for _ in range(3)]
    for row, token in allowed.nonzero().tolist():
        words[row][token // 32] |= 1 << (token % 32)
    bits = torch.tensor([[word - (word >> 31 << 32) for word in row] for row in words], dtype=torch.int32)
    expected = logits.clone()
    for number, row in enumerate(rows.tolist()):
        for token in range(vocab):
            if not allowed[number, token]:
                expected[row, token] = float("-inf")
    assert apply_mask(logits, rows, bits) is logits
    assert torch.equal(logits, expected)


def test_only_some_tokens_are_allowed() -> None:
    logits = torch.arange(15.0).reshape(3, 5)
    out = allow_tokens(logits, torch.tensor([0, 2]), torch.tensor([0, 2, 2]), torch.tensor([4, 0, 1]))
    no = float("-inf")
    assert out is logits
    assert out.tolist() == [[no, no, no, no, 4], [5, 6, 7, 8, 9], [10, 11, no, no, no]]


def test_logprobs_and_ranks() -> None:
    logits = torch.randn(6, 300) * 3
    ids = torch.randint(0, 300, (6,))
    logprob, rank, top_ids, top_logprobs = logprobs(logits, ids, 5)
    exact = logits.double() - logits.double().exp().sum(-1, keepdim=True).log()
    rows = torch.arange(6)
    torch.testing.assert_close(logprob.double(), exact[rows, ids], rtol=1e-5, atol=1e-5)
    order = logits.argsort(dim=-1, descending=True)
    assert torch.equal(top_ids, order[:, :5])
    torch.testing.assert_close(top_logprobs.double(), exact.gather(1, top_ids), rtol=1e-5, atol=1e-5)
    assert torch.equal(order[rows, rank - 1], ids)


def test_of_equals_that_do_not_all_fit_the_lower_ids_are_taken() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, [4000, 4999]] = 1.0
    assert logprobs(logits, torch.tensor([0]), 5)[2].tolist() == [[4000, 4999, 0, 1, 2]]


def test_of_equal_logits_the_lower_id_comes_first_and_all_share_a_rank() -> None:
    logits = torch.tensor([[-1.0, 2.0, 0.0, 2.0, -0.0, -1.0, float("-inf"), -3e38]])
    logprob, rank, top_ids, _ = logprobs(logits.expand(2, -1), torch.tensor([3, 4]), 8)
    assert top_ids.tolist() == [[1, 3, 2, 4, 0, 5, 7, 6]] * 2
    assert rank.tolist() == [1, 3]
    assert bool(logprob.isfinite().all())


@pytest.mark.parametrize("num_top", [0, 3, 99])
def test_as_many_top_logprobs_as_there_are_tokens(num_top: int) -> None:
    *_, top_ids, top_logprobs = logprobs(spread(2, 10), torch.tensor([0, 1]), num_top)
    assert top_ids.shape == top_logprobs.shape == (2, min(num_top, 10))


def test_random_bits_are_those_of_splitmix64() -> None:
    """The same arithmetic in Python's integers, unbounded and then reduced."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    seeds, positions = [0, 1, -1, 2**62, -(2**63)], [0, 1, 2**31, 77, 2**40]
    expected = [
        mix((mix((s + golden) & mask) + p * golden) & mask) >> 24 for s, p in zip(seeds, positions, strict=True)
    ]
    assert uniform_bits(torch.tensor(seeds), torch.tensor(positions), 40).tolist() == expected
