"""Requests and batches to draft tokens for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from llmk_testing.speculator_examples import Draft

VOCAB, MAX_DRAFTS, MAX_LEN, SLOTS = 131, 5, 96, 6
MANY_IDS = 1 << 18
"""The size of a vocabulary whose ids need more than 16 bits."""
Ask = Callable[..., Draft]
"""Makes an oracle, with changes of its context."""
LONG = (2_100, 4_200, 8_400)
"""Lengths of long texts: a few times as many no longer fit into 16 bits."""
MANY_DRAFTS = 16
"""More drafts than there are tokens in most contexts that are looked up."""
SILENT = "nothing was drafted, although the last tokens of each request occurred before"


def histories(seed: int, count: int) -> Iterator[list[int]]:
    """The tokens of requests that repeat themselves, some of few different tokens, so that others have the same."""
    generator = random.Random(seed)
    for _ in range(count):
        vocab = generator.choice((2, 4, 12, VOCAB))
        tokens = [generator.randrange(vocab) for _ in range(generator.randint(1, 8))]
        size = generator.randint(2, MAX_LEN - MAX_DRAFTS)
        while len(tokens) < size:
            at = generator.randrange(len(tokens))
            repeats = generator.random() < 0.5
            tokens += tokens[at : at + generator.randint(2, 12)] if repeats else [generator.randrange(vocab)]
        yield tokens[:size]


def long_text(seed: int, length: int) -> list[int]:
    """Of few different tokens, so that the last ones occur everywhere, but 24 of them at two places alone."""
    generator = random.Random(seed)
    tokens = [generator.randrange(12) for _ in range(length)]
    for at in (length // 4, length - 24):
        tokens[at : at + 24] = tokens[length // 2 :][:24]
    return tokens


def odd_histories() -> tuple[list[int], ...]:
    """One token; the ends of the vocabulary; positions of given embeddings; one token over and over."""
    ends, given = [0, VOCAB - 1], [VOCAB] * 3
    return ([0], [VOCAB - 1] * 2, ends * 8, [*given, 1, 2, *given, 1, 2], [1, 2, VOCAB, 1, 2], [7] * (MAX_LEN - 1))


def growing(tokens: Sequence[int], seed: int) -> list[list[int]]:
    """A request's tokens in calls: the prompt, and then one or several more at a time."""
    generator, found = random.Random(seed), []
    length = generator.randint(1, len(tokens))
    while length < len(tokens):
        found.append(list(tokens[:length]))
        length += generator.choice((1, 1, 1, 2, 4))
    return [*found, list(tokens)]


def share(right: int, drafted: int) -> str:
    """A text that did nothing but repeat itself goes on, for those who look at it in the right place."""
    said = f"{right} of {drafted} drafts are what came next"
    assert 2 * right >= drafted, f"{said}, in texts that repeat a few tokens for ever"
    return said


class HostPlay:
    """Calls a speculator, and checks what it returns as the engine does."""

    def __init__(self, speculator: Any, vocab_size: int = VOCAB) -> None:
        self.speculator = speculator
        self._vocab_size = vocab_size

    def propose(self, request: str, tokens: Sequence[int], most: int = MAX_DRAFTS) -> list[int]:
        """The drafts for a request."""
        drafts = self.speculator.propose(request, list(tokens), most)
        assert isinstance(drafts, Sequence), f"propose returned {drafts!r}, which is not a sequence of token ids"
        found = list(drafts)
        assert len(found) <= most, f"propose returned {len(found)} drafts, at most {most} were wanted"
        for draft in found:
            right = isinstance(draft, int) and not isinstance(draft, bool) and 0 <= draft < self._vocab_size
            assert right, f"propose drafted {draft!r}, not a token id below {self._vocab_size}, after {list(tokens)}"
        return found


class DeviceBatch:
    """Requests in the slots of a batch. ``tokens``, ``known`` and ``slots`` are as in
    :meth:`llmk.api.DeviceSpeculator.propose`, for all requests."""

    def __init__(self, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)
        texts = [*histories(seed, SLOTS - 3), [seed % VOCAB], _longest(seed), _embedded(seed)]
        tokens = torch.randint(4, (SLOTS, MAX_LEN + 1), generator=generator, dtype=torch.int32)
        for slot, text in enumerate(texts):
            tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
        self.tokens = tokens.to(device)
        self.known = torch.tensor([len(text) for text in texts], device=device)
        self.slots = torch.arange(SLOTS, device=device)

    def texts(self) -> list[list[int]]:
        """The known tokens of each request."""
        rows = self.tokens[self.slots].tolist()
        return [row[:length] for row, length in zip(rows, self.known.tolist(), strict=True)]

    def moved(self, by: int) -> DeviceBatch:
        """The same requests in other slots."""
        other = self._copy()
        other.tokens, other.slots = self.tokens.roll(by, 0), (self.slots + by) % SLOTS
        return other

    def filled(self, token: int) -> DeviceBatch:
        """The same requests with other tokens beyond the known ones."""
        other = self._copy()
        place = torch.arange(MAX_LEN + 1, device=self.tokens.device)
        other.tokens = self.tokens.where(place < self.known[self.slots.argsort()][:, None], token)
        return other

    def propose(self, speculator: Any, numbers: Iterable[int], width: int, padding: int = 0, turned: int = 0) -> Tensor:
        """The drafts for some of the requests. So many rows of ``padding`` are behind them, of which ``turned`` are
        moved to the start."""
        index = torch.tensor(list(numbers), dtype=torch.int64, device=self.tokens.device)
        known, slots = self.known[index], self.slots[index]
        if padding:
            known = torch.cat([known, known.new_tensor([0, 1, MAX_LEN, 3] * padding)[:padding]])
            slots = torch.cat([slots, slots.new_full((padding,), -1)])
        known, slots = known.roll(turned), slots.roll(turned)
        found: Tensor = speculator.propose(self.tokens.clone(), known, slots, width)
        expected = (torch.int64, (len(slots), width))
        got = (found.dtype, tuple(found.shape)) if isinstance(found, Tensor) else found
        assert got == expected, f"propose returned {got}, expected {expected}"
        assert found.device == self.tokens.device, f"drafts are on {found.device}, tokens on {self.tokens.device}"
        return found.clone()

    def _copy(self) -> DeviceBatch:
        other = object.__new__(DeviceBatch)
        other.tokens, other.known, other.slots = self.tokens, self.known, self.slots
        return other


def _longest(seed: int) -> list[int]:
    """As long as a request may be."""
    return [(place * place + seed) % 11 for place in range(MAX_LEN)]


def _embedded(seed: int) -> list[int]:
    """With positions whose embeddings a prompt gave."""
    return [VOCAB, VOCAB, 1, 2, seed % VOCAB, VOCAB, 1, 2, seed % VOCAB, VOCAB, 1, 2]
