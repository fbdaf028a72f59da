"""Speculators on random tokens, compared with slow references."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from llmk.api import SpeculatorContext
from llmk_speculators.copying import CATCH_UP, continuation
from llmk_speculators.device_lookup import DevicePromptLookup
from llmk_speculators.lookup import PromptLookup
from llmk_speculators.suffix_tree import SuffixTree, SuffixTreeSpeculator

VOCAB = 1000
LENGTHS = [(2, 4), (1, 1), (1, 3), (3, 32)]


def ends(tokens: Sequence[int], length: int) -> list[int]:
    """The numbers of the tokens that follow an earlier occurrence of the last ``length`` tokens."""
    last = list(tokens[-length:])
    return [at for at in range(length, len(tokens)) if list(tokens[at - length : at]) == last]


def longest(tokens: Sequence[int]) -> int:
    """The length of the longest suffix that occurs elsewhere."""
    return next((length for length in range(len(tokens) - 1, 0, -1) if ends(tokens, length)), 0)


def copied(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """``count`` tokens from ``start`` on, each appended before the next is read."""
    text = list(tokens)
    for at in range(start, start + count):
        text.append(text[at])
    return text[len(tokens) :]


def looked_up(tokens: Sequence[int], most: int, min_match: int, max_match: int) -> list[int]:
    """The drafts of prompt lookup."""
    for length in range(min(max_match, len(tokens) - 1), min_match - 1, -1):
        if found := ends(tokens, length):
            return copied(tokens, found[-1], most)
    return []


def histories(seed: int, count: int, length: int) -> Iterator[list[int]]:
    """Random tokens of small and large vocabularies, with repeated parts, of up to ``length`` tokens."""
    generator = random.Random(seed)
    for _ in range(count):
        vocab = generator.choice((1, 2, 3, 5, 20, 1000))
        tokens = [generator.randrange(vocab) for _ in range(generator.randint(1, 6))]
        size = generator.randint(1, length)
        while len(tokens) < size:
            if generator.random() < 0.4:
                at = generator.randrange(len(tokens))
                tokens += tokens[at : at + generator.randint(1, 12)]
            else:
                tokens.append(generator.randrange(vocab))
        yield tokens[:size]


def context(min_match: int = 2, max_match: int = 4, max_spec_factor: float = 1e9) -> SpeculatorContext:
    options: dict[str, Any] = {"min_match": min_match, "max_match": max_match, "max_spec_factor": max_spec_factor}
    return SpeculatorContext(VOCAB, 8, 256, options)


def grown(tokens: list[int], generator: random.Random) -> list[list[int]]:
    """The tokens as they come: a prompt, and then one or some at a time."""
    lengths, length = [], generator.randint(1, len(tokens))
    while length < len(tokens):
        lengths.append(length)
        length += generator.choice((1, 1, 1, 2, 5))
    return [tokens[:length] for length in (*lengths, len(tokens))]


@pytest.mark.parametrize(("min_match", "max_match"), LENGTHS)
def test_prompt_lookup_equals_its_reference(min_match: int, max_match: int) -> None:
    generator, speculator = random.Random(1), PromptLookup(context(min_match, max_match))
    drafted = 0
    for number, tokens in enumerate(histories(2, 60, 80)):
        for known in grown(tokens, generator):
            most = generator.randint(1, 8)
            drafts = speculator.propose(f"r{number % 7}", known, most)
            assert list(drafts) == looked_up(known, most, min_match, max_match), known
            drafted += len(drafts)
        speculator.leave(f"r{number % 7}")
    assert drafted > 500


@pytest.mark.parametrize(("min_match", "max_match"), LENGTHS)
def test_prompt_lookup_on_the_device_equals_that_on_the_host(min_match: int, max_match: int) -> None:
    generator = torch.Generator().manual_seed(3)
    host, device = (kind(context(min_match, max_match)) for kind in (PromptLookup, DevicePromptLookup))
    for round_number in range(12):
        texts = list(histories(100 + round_number, 16, 64))
        tokens = torch.randint(3, (20, 65), generator=generator, dtype=torch.int32)
        slots = torch.randperm(20, generator=generator)[:16]
        for slot, text in zip(slots.tolist(), texts, strict=True):
            tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
        known = torch.tensor([len(text) for text in texts])
        known, slots = torch.cat([known, torch.tensor([0, 7])]), torch.cat([slots, torch.tensor([-1, -1])])
        for width in (1, 3, 8):
            drafts = device.propose(tokens, known, slots, width)
            assert (drafts.dtype, tuple(drafts.shape)) == (torch.int64, (18, width))
            assert (drafts[16:] == -1).all()
            for text, row in zip(texts, drafts.tolist(), strict=False):
                expected = list(host.propose(str(text), text, width)) or [-1] * width
                assert row == expected, text


def test_a_full_slot_and_a_short_one() -> None:
    device = DevicePromptLookup(context(1, 4))
    tokens = torch.tensor([[5, 6, 7, 5, 6], [9, 5, 6, 7, 5]], dtype=torch.int32)
    drafts = device.propose(tokens, torch.tensor([5, 1]), torch.tensor([0, 1]), 4)
    assert drafts.tolist() == [[7, 5, 6, 7], [-1] * 4]


def test_the_suffix_tree_knows_the_longest_repeated_suffix() -> None:
    for tokens in histories(4, 150, 70):
        tree = SuffixTree()
        for length, token in enumerate(tokens, 1):
            tree.extend([token])
            known = tokens[:length]
            assert tree.match == longest(known), known
            if tree.match:
                assert tree.followed() in ends(known, tree.match), known


@pytest.mark.parametrize("factor", [0.5, 1.0, 1e9])
def test_the_suffix_tree_drafts_what_followed(factor: float) -> None:
    generator, speculator = random.Random(5), SuffixTreeSpeculator(context(2, 4, factor))
    drafted = 0
    for number, tokens in enumerate(histories(6, 60, 80)):
        for known in grown(tokens, generator):
            most, match = generator.randint(1, 8), longest(known)
            drafts = list(speculator.propose(f"r{number}", known, most))
            count = min(most, max(1, int(match * factor))) if match >= 2 else 0
            assert len(drafts) == count
            assert not drafts or drafts in [copied(known, at, count) for at in ends(known, match)], known
            drafted += count
        speculator.leave(f"r{number}")
    assert drafted > 200


@pytest.mark.parametrize("kind", [PromptLookup, SuffixTreeSpeculator])
def test_a_long_prompt_is_read_over_several_calls(kind: type[Any]) -> None:
    tokens = [7, 8, 9, *(token % 50 + 10 for token in range(CATCH_UP)), 7, 8]
    speculator = kind(context())
    assert not speculator.propose("r", tokens, 1)
    assert [*speculator.propose("r", tokens, 1)] == [9]


@pytest.mark.parametrize("kind", [PromptLookup, SuffixTreeSpeculator])
def test_tokens_outside_of_the_vocabulary_end_the_drafts(kind: type[Any]) -> None:
    """Positions of a prompt that are given as embeddings have the id of the vocabulary's size."""
    tokens = [1, 2, 3, VOCAB, 4, 1, 2]
    assert list(kind(context()).propose("r", tokens, 8)) == [3]


@pytest.mark.parametrize(
    ("tokens", "start", "expected"),
    [([1, 2, 3], 1, [2, 3, 2, 3, 2]), ([4], 0, [4] * 5), ([1, 2, VOCAB, 3, 4, 5], 1, [2])],
)
def test_continuations(tokens: list[int], start: int, expected: list[int]) -> None:
    assert continuation(tokens, start, 5, VOCAB) == expected
