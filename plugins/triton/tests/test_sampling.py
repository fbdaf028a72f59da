"""Sampling against the reference: the same tokens, not only the same distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.reference.sampling import sample as reference
from llmk_triton.sampling import sample as module
from llmk_triton.sampling import truncation as narrow
from llmk_triton.sampling.logprobs import logprobs
from llmk_triton.sampling.mask import apply_mask
from llmk_triton.sampling.penalties import apply_penalties
from llmk_triton.sampling.sample import sample

VOCAB = 5000
"""Two parts, the second of which is not full."""
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_logits(rows: int, scale: float, ties: bool = False, vocab: int = VOCAB) -> Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * scale
    return (logits * 4).round() / 4 if ties else logits


def controls(rows: int, **given: Any) -> dict[str, Tensor | None]:
    """Columns of tables, as the engine hands them over; what isn't given is ``None``."""
    real, whole = torch.zeros(rows, 6), torch.zeros(rows, 3, dtype=torch.int64)
    whole[:, 1], positions = torch.arange(rows) - 2, torch.arange(rows) * 7
    columns: dict[str, Tensor | None] = {"temperature": real[:, 0], "top_k": None, "top_p": None, "min_p": None}
    for name, column in (
        ("temperature", real[:, 0]),
        ("top_k", whole[:, 0]),
        ("top_p", real[:, 1]),
        ("min_p", real[:, 2]),
    ):
        if name in given:
            values = torch.tensor(given[name])
            column.copy_(values.repeat(-(-rows // len(values)))[:rows])
            columns[name] = column
    return columns | {"seeds": whole[:, 1], "positions": positions}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_greedy_takes_the_first_of_equals(dtype: torch.dtype) -> None:
    logits = random_logits(5, 1.0, ties=True).to(dtype)
    logits[3] = float("-inf")
    logits[4, [17, 4999]] = float("nan")
    expected = logits.float().argmax(-1)
    assert sample(logits, None, None, None, None, None, None).tolist() == expected.tolist()
    assert (
        sample(logits[:, 1:], None, None, None, None, None, None).tolist() == logits[:, 1:].float().argmax(-1).tolist()
    )
    assert sample(logits[:0], None, None, None, None, None, None).shape == (0,)


TRUNCATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k": {"top_k": [0, 1, 50, 600, 5000, 9999]},
    "top_p": {"top_p": [0.5, 1.0, 0.9, 0.9999, 1e-6]},
    "min_p": {"min_p": [0.0, 0.2, 1.0, 1e-4]},
    "both": {"top_k": [0, 1, 50, 3000], "top_p": [0.5, 1.0, 0.9]},
    "all": {"top_k": [0, 1, 50, 600, 0], "top_p": [0.5, 1.0, 0.9], "min_p": [0.0, 0.2, 0.0, 0.001]},
}


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "ties"), [(0.05, False), (1.0, False), (2.0, True), (4.0, False)])
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_samples_the_tokens_of_the_reference(name: str, scale: float, ties: bool) -> None:
    """Nothing but the rounding of ``exp`` may differ: then sums differ by less than 1e-6, and of as many draws one
    gives another token. None of these does."""
    logits = random_logits(12, scale, ties)
    chosen = controls(12, temperature=[1.0, 0.7, 1.3, 0.0, 2.0], **TRUNCATIONS[name])
    before = logits.clone()
    assert sample(logits, **chosen).tolist() == reference.sample(logits, **chosen).tolist()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_logits_in_16_bits(dtype: torch.dtype) -> None:
    logits, chosen = random_logits(6, 2.0).to(dtype), controls(6, temperature=[0.7], top_p=[0.9, 1.0], top_k=[0, 30])
    assert sample(logits, **chosen).tolist() == reference.sample(logits, **chosen).tolist()
    for actual, expected in zip(
        *(op(logits, torch.arange(6), 4) for op in (logprobs, reference.logprobs)), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_open_tokens_may_be_more_than_a_program_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they are all: of tokens that hardly differ no round rules any out."""
    monkeypatch.setattr(module, "CHUNK", 1024)
    logits = random_logits(4, 1e-4)
    chosen = controls(4, temperature=[1.0], top_k=[0, 700, 4000, 0], top_p=[0.5, 1.0, 0.3, 0.99])
    assert sample(logits, **chosen).tolist() == reference.sample(logits, **chosen).tolist()


@pytest.mark.parametrize(("rounds", "pivots"), [(1, 4), (3, 2)])
def test_rounds_and_pivots_change_no_token(rounds: int, pivots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", rounds)
    monkeypatch.setattr(module, "PIVOTS", pivots)
    chosen = controls(6, temperature=[0.8], top_k=[0, 40, 900], top_p=[0.8, 0.95])
    logits = random_logits(6, 2.0)
    assert sample(logits, **chosen).tolist() == reference.sample(logits, **chosen).tolist()


def test_a_row_gives_the_same_token_alone() -> None:
    logits, chosen = random_logits(5, 2.0), controls(5, temperature=[0.9], top_p=[0.9, 0.5])
    together = sample(logits, **chosen)
    for row in range(5):
        alone = {name: None if column is None else column[row : row + 1] for name, column in chosen.items()}
        assert int(sample(logits[row : row + 1], **alone)) == int(together[row])


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits, chosen = random_logits(4, 3.0), controls(4, temperature=[temperature], top_p=[0.9, 1.0], top_k=[0, 0, 30])
    assert sample(logits, **chosen).tolist() == reference.sample(logits, **chosen).tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_nan_logits_give_a_valid_id() -> None:
    logits = random_logits(4, 1.0)
    logits[0], logits[1], logits[2, 7], logits[3, 9] = float("-inf"), float("nan"), float("nan"), float("inf")
    tokens = sample(logits, **controls(4, temperature=[1.0], top_p=[0.9], top_k=[5, 0]))
    assert all(0 <= token < VOCAB for token in tokens.tolist())
    assert tokens.tolist()[2:] == [7, 9]


def test_weights_are_rounded_to_the_even() -> None:
    """Distances whose weights lie between two integers, in all of float32's magnitudes."""
    distance = torch.linspace(0, float(narrow.FARTHEST.value), 4096)
    logits = torch.cat([-distance, torch.full((904,), float("-inf"))])[None].expand(40, -1)
    chosen = controls(40, temperature=[1.0])
    assert sample(logits, **chosen).tolist() == reference.sample(logits, **chosen).tolist()


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_logprobs(num_top: int) -> None:
    logits = random_logits(4, 3.0)
    logits[1] = logits[1].round()
    logits[2, :] = float("-inf")
    logits[2, [7, 4100]], logits[2, 100] = 0.0, -0.0
    ids = torch.tensor([4999, 77, 4100, 5])
    actual, expected = logprobs(logits, ids, num_top), reference.logprobs(logits, ids, num_top)
    for which in (1, 2):
        assert torch.equal(actual[which], expected[which])
    for which in (0, 3):
        torch.testing.assert_close(actual[which], expected[which], rtol=1e-5, atol=1e-5)


def test_as_many_top_logprobs_as_there_are_tokens() -> None:
    logits = random_logits(2, 1.0, vocab=10)
    *_, top_ids, top_logprobs = logprobs(logits, torch.tensor([0, 1]), 99)
    assert torch.equal(top_ids, reference.logprobs(logits, torch.tensor([0, 1]), 99)[2])
    assert top_logprobs.shape == (2, 10)
    assert logprobs(logits[:0], torch.tensor([], dtype=torch.int64), 3)[2].shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_penalties(dtype: torch.dtype) -> None:
    """A prompt alone, a long output whose tokens come again and again, embeddings in place of tokens, and nothing."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 300, (7, 2500), generator=random, dtype=torch.int32)
    tokens[:, ::3] %= 7
    tokens[6, 2:9] = tokens[3, 1000:1500] = 300
    logits = random_logits(5, 2.0, vocab=300).to(dtype)
    table = torch.tensor([[0.1, 0.01, 1.0], [0.2, 0.0, 1.3], [0.0, 0.3, 0.8], [1.0, 1.0, 1.0]])
    requests = (torch.tensor([4, 0, 2, 1]), tokens[:, :2100], torch.tensor([6, 1, 3, 0]))
    lengths = torch.tensor([10, 2000, 0, 0]), torch.tensor([10, 2050, 2100, 0])
    arguments = (*requests, *lengths, *table.unbind(1))
    actual = logits.clone()
    assert apply_penalties(actual, *arguments) is actual
    expected = reference.apply_penalties(logits.float(), *arguments).to(dtype)
    torch.testing.assert_close(actual, expected, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=1e-6)
    assert torch.equal(actual[3], logits[3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 4096, 4097, 5000])
def test_packed_masks(dtype: torch.dtype, vocab: int) -> None:
    """Of parts of wider tensors, with nothing written behind the vocabulary or to other rows."""
    random = torch.Generator().manual_seed(vocab)
    words, rows = -(-vocab // 32), torch.tensor([[5, 0], [1, 0], [2, 0]])[:, 0]
    table = torch.randint(-(2**31), 2**31, (3, words + 2), generator=random).to(torch.int32)
    table[1] = 0
    wide = random_logits(6, 1.0, vocab=vocab + 9).to(dtype)
    actual, expected = wide.clone(), wide.clone()
    given = actual[:, :vocab]
    assert apply_mask(given, rows, table[:, :words]) is given
    reference.apply_mask(expected[:, :vocab], rows, table[:, :words])
    assert torch.equal(actual, expected)
    assert apply_mask(given, rows[:0], table[:0, :words]) is given
