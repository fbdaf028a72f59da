"""What the sampler calls, and what it does not: features that no request of a step uses cost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from llmk.engine.device.sample_rows import SampleRows
from llmk.engine.sampling.controls import ControlTable
from llmk.engine.sampling.sampler import Sampler
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import NewRequest
from llmk.reference.sampling import sample as sampling

VOCAB = 32
PROMPT = [3, 4, 5]


class Counting:
    """Hands out the reference ops, and counts their calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def kernel(self, kind: str, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls[name] += 1
            return getattr(sampling, name)(*args)

        return call


class Harness:
    """A batch of requests that sample one token a step, from logits that are all alike but rise with the id."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self.build = Counting()
        self.sampler = Sampler(self.build, 16, torch.device("cpu"))  # type: ignore[arg-type]
        self.tokens = torch.zeros(16, 64, dtype=torch.int32)
        self.tokens[:, : len(PROMPT)] = torch.tensor(PROMPT)
        self.lengths = torch.full((16,), len(PROMPT))
        self.slots: list[int] = []
        for params_of_one in params:
            self.enter(len(self.slots), params_of_one)

    def enter(self, slot: int, params: SamplingParams) -> None:
        self.slots.append(slot)
        self.sampler.update([], [new(slot, params)], self.tokens)

    def step(self) -> list[int]:
        logits = (torch.arange(VOCAB) / VOCAB).repeat(len(self.slots), 1)
        rows = torch.tensor(self.slots)
        sampled = self.sampler(logits, SampleRows(self.slots, rows, self.lengths, self.lengths[rows].tolist()), self)
        self.tokens[rows, self.lengths[rows]] = sampled.token_ids.int()
        self.lengths[rows] += 1
        return sampled.token_ids.tolist()

    def append(self, token_ids: Sequence[int]) -> None:
        for slot, token in enumerate(token_ids):
            self.tokens[slot, self.lengths[slot]] = token
            self.lengths[slot] += 1

    def verify(self, drafts: list[list[int]], doubt: int) -> list[list[int]]:
        """What each slot samples at its drafts and after them. The host takes lengths for ``doubt`` more or less."""
        counts = [len(of_slot) + 1 for of_slot in drafts]
        for slot, of_slot in enumerate(drafts):
            start = int(self.lengths[slot])
            self.tokens[slot, start : start + len(of_slot)] = torch.tensor(of_slot)
            self.lengths[slot] += len(of_slot)
        slots = [slot for slot, count in enumerate(counts) for _ in range(count)]
        behind = torch.tensor([back for count in counts for back in range(count)][::-1])
        known = self.lengths[slots] - behind
        most, fewest = (known + doubt).tolist(), (known - doubt).tolist()
        logits = (torch.arange(VOCAB) / VOCAB).repeat(len(slots), 1)
        rows = SampleRows(slots, torch.tensor(slots), self.lengths, most, fewest, behind)
        sampled = self.sampler(logits, rows, self)
        return [part.tolist() for part in sampled.token_ids.split(counts)]


def new(slot: int, params: SamplingParams) -> NewRequest:
    return NewRequest(
        id=str(slot),
        slot=slot,
        token_ids=PROMPT,
        num_prompt_tokens=len(PROMPT),
        num_computed=0,
        block_ids=[],
        params=params,
        eos_token_ids=(31,),
        seed=slot,
    )


FEATURES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "none": ({}, set()),
    "bias": ({"logit_bias": {1: 3.0}}, {"apply_bias"}),
    "word": ({"bad_word_ids": ((30,),)}, {"apply_bias"}),
    "words": ({"bad_word_ids": ((30, 31),)}, {"apply_bias", "match_suffixes"}),
    "allowed": ({"allowed_token_ids": (1,)}, {"allow_tokens"}),
    "penalty": ({"presence_penalty": 1.0}, {"apply_penalties"}),
    "min_tokens": ({"min_tokens": 40}, {"apply_bias"}),
    "logprobs": ({"logprobs": 0}, {"logprobs"}),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_step_calls_the_ops_that_it_needs(name: str) -> None:
    options, needed = FEATURES[name]
    harness = Harness([SamplingParams(temperature=0), SamplingParams(temperature=0, **options)])
    for _ in range(3):
        harness.step()
    assert harness.build.calls == dict.fromkeys({"sample", *needed}, 3)
    harness.slots.pop()
    harness.build.calls.clear()
    harness.step()
    assert set(harness.build.calls) == {"sample"}, "the one that wants it is not in this step"


def test_greedy_requests_upload_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    original = ControlTable._tensor
    monkeypatch.setattr(ControlTable, "_tensor", lambda *args: made.append(args) or original(*args))
    harness = Harness([SamplingParams(temperature=0), SamplingParams(temperature=0, top_k=5, top_p=0.5)])
    harness.step()
    assert not made


def test_what_a_step_needs_is_built_when_the_requests_change(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []
    original = ControlTable.controls
    monkeypatch.setattr(ControlTable, "controls", lambda *args: built.append(args) or original(*args))
    harness = Harness([SamplingParams(seed=1), SamplingParams(temperature=0, min_tokens=5, logit_bias={31: 50.0})])
    tokens = [harness.step()[1] for _ in range(8)]
    assert len(built) == 2, "at first, and when min_tokens was reached"
    assert tokens == [30] * 5 + [31] * 3
    harness.enter(2, SamplingParams(temperature=0))
    harness.step()
    harness.step()
    assert len(built) == 3


def test_a_slot_forgets_its_former_request() -> None:
    harness = Harness([SamplingParams(seed=4), SamplingParams(seed=5, temperature=2, allowed_token_ids=(1,))])
    harness.step()
    harness.sampler.update([1], [new(1, SamplingParams(temperature=0))], harness.tokens)
    assert {harness.step()[1] for _ in range(10)} == {31}


def test_words_count_what_was_sampled_alone() -> None:
    """The prompt ends with 4, 5; a bad word may start in the prompt and continue in the output."""
    likes = {28: 9.0}
    harness = Harness(
        [
            SamplingParams(temperature=0, logit_bias=likes, bad_word_ids=((5, 28), (28, 28, 28), (31,))),
            SamplingParams(temperature=0, logit_bias=likes, bad_word_ids=((28, 28),)),
        ]
    )
    steps = [harness.step() for _ in range(6)]
    assert [a for a, _ in steps] == [28, 28, 30, 28, 28, 30]
    assert [b for _, b in steps] == [28, 31] * 3


@pytest.mark.parametrize("doubt", [0, 2])
@pytest.mark.parametrize("steps", [2, 5])
def test_rows_of_one_slot_sample_what_one_row_at_a_time_does(doubt: int, steps: int) -> None:
    """Each row of a slot sees the tokens before it alone: seeds, penalties, suffixes and least lengths go by these."""
    everything: dict[str, Any] = {"min_tokens": 3, "bad_word_ids": ((30, 31), (29, 29)), "presence_penalty": 0.02}
    params = [
        SamplingParams(seed=1, temperature=3.0),
        SamplingParams(temperature=0, min_tokens=4, logit_bias={31: 50.0}),
        SamplingParams(temperature=0, min_tokens=2, logit_bias={31: 50.0}, stop_token_ids=(30,)),
        SamplingParams(temperature=0, frequency_penalty=0.05, repetition_penalty=1.1),
        SamplingParams(seed=3, temperature=0.1, top_k=8, **everything),
        SamplingParams(temperature=0),
    ]
    one_by_one = Harness(params)
    expected = list(zip(*[one_by_one.step() for _ in range(2 * steps)], strict=True))
    harness = Harness(params)
    for first in (0, steps):
        drafts = [list(tokens[first : first + steps - 1]) for tokens in expected]
        found = harness.verify(drafts, doubt)
        assert found == [list(tokens[first : first + steps]) for tokens in expected]
        harness.append([tokens[-1] for tokens in found])
