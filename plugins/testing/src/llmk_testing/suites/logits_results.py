"""Compares a logits processor with its oracle: one instance over many steps, in which requests come, go, and return,
with tokens that repeat, drafts that are verified, and logits that are huge, equal, or ruled out; and long requests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsProcessor, LogitsProcessorSpec, LogitsRequest, LogitsRows, RequestError
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.logits_examples import Expected, LogitsExamples, Parameters
from llmk_testing.parsers import counted_lines
from llmk_testing.suites.logits_values import with_variants

SLOTS, LONGEST, VOCAB = 6, 40, 37
STEPS = 60
WIDE = 40_003
"""A vocabulary with more tokens than 16 bits can name."""
DIFFERENT = (1, 3, 1000)
"""How many different tokens a long request has."""
LENGTHS = (1, 2, 127, 128, 129, 130, 200, 256, 257, 258, 299)
LONG = (33_001, 5000)
"""Lengths around the ends of 8 bits, and beyond those of 16."""


@dataclass(slots=True)
class Running:
    """A request: its tokens, of which the first are the prompt, and its parameters."""

    number: int
    tokens: list[int]
    num_prompt_tokens: int
    parameters: Parameters

    def entry(self) -> LogitsRequest:
        """What the processor is given of it."""
        return LogitsRequest(f"request-{self.number}", list(self.tokens), self.num_prompt_tokens, self.parameters)


def check_oracle(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """Every row of every step is what the oracle makes of it. Two instances take turns."""
    _oracle(own)
    own, rows = with_variants(spec, bench, own), 0
    for seed in range(bench.seed, bench.seed + (12 if bench.thorough else 3)):
        kind = load_object(spec.implementation)
        both = [Steps(kind, bench.device, own, number) for number in (seed, seed + 1000)]
        rows += sum(one.step() for _ in range(STEPS) for one in both)
    return f"{rows} rows"


def check_long(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """Requests of lengths around the ends of 8 and 16 bits, in the last slots of a large batch, with few and with many
    different tokens of a large vocabulary."""
    expected = _oracle(own)
    rows = 0
    for slots, lengths in ((300, LENGTHS), (2, LONG if _is_linear(own) else ())):
        requests = list(enumerate((length, each) for length in lengths for each in own.parameters))
        for start in range(0, len(requests), min(slots, 16)):
            large = _Large(load_object(spec.implementation), bench.device, slots, max(lengths))
            for slot, (number, (length, parameters)) in enumerate(requests[start : start + min(slots, 16)]):
                different = DIFFERENT[(number + number // len(own.parameters)) % len(DIFFERENT)]
                large.enter(slots - 1 - slot, length, different, parameters)
            rows += large.compare(expected, own.tolerance)
    return f"{rows} rows"


def check_refused(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """The invalid parameters that the examples name must be refused."""
    made = Steps(load_object(spec.implementation), bench.device, own, 0)
    for parameters in own.refused:
        made.refuse(0, parameters)
    return f"{len(own.refused)} refused"


def entered(processor: LogitsProcessor, slot: int, request: LogitsRequest) -> None:
    """The request takes a slot; what the processor was given must stay as it was, for when the request resumes."""
    tokens, parameters = list(request.token_ids), deepcopy(request.parameters)
    try:
        processor.enter(slot, request)
    finally:
        same = request.parameters == parameters and list(request.token_ids) == tokens
        assert same, f"enter changed the request, whose parameters were {parameters} and are {request.parameters}"


def closest(found: Tensor, right: Tensor, given: Tensor, tolerance: float, what: str) -> None:
    """``found`` must be ``right``, float32 ``[vocab]``, of logits ``given``."""
    close = torch.isclose(found, right, rtol=tolerance, atol=tolerance)
    if not close.all():
        token = int((~close).nonzero()[0])
        values = f"{float(found[token]):.6g}, expected {float(right[token]):.6g} of {float(given[token]):.6g}"
        raise AssertionError(f"the logit of token {token} is {values}; {what}")


class Steps:
    """One instance and the requests that it serves, drawn from a seed."""

    def __init__(self, kind: type[LogitsProcessor], device: torch.device, own: LogitsExamples, seed: int) -> None:
        self._own, self._device, self._seed = own, device, seed
        self._random = random.Random(seed)
        self._drawn = torch.Generator().manual_seed(seed)
        self._poison = self._random.randrange(VOCAB)
        self._known = [token for token in range(VOCAB) if token != self._poison]
        """All but the token beyond the ends of requests, which none of them has."""
        self._tokens = torch.full((SLOTS, LONGEST + 1), self._poison, dtype=torch.int32, device=device)
        self._processor = kind(LogitsBatch(self._tokens, VOCAB))
        self._parameters = deepcopy(list(own.parameters))
        self._running: dict[int, Running] = {}
        self._waiting: list[Running] = []
        self._number = 0
        self._step = 0

    def step(self) -> int:
        """Plays a step; returns the number of rows that were compared."""
        self._step += 1
        self._change()
        slots = [slot for slot in self._running if self._random.random() < 0.8]
        self._random.shuffle(slots)
        drafts = {slot: self._drafts(slot) for slot in slots}
        for _ in range(2 if slots and self._random.random() < 0.15 else 1 if slots else 0):
            self._compare(drafts)
        for slot in slots:
            self._extend(slot, drafts[slot])
        return sum(1 + len(own) for own in drafts.values())

    def refuse(self, slot: int, parameters: Parameters) -> None:
        """A request with invalid parameters does not take the slot."""
        self._tokens[slot, :2] = 1
        try:
            entered(self._processor, slot, LogitsRequest("refused", [1, 1], 2, deepcopy(dict(parameters))))
        except RequestError:
            return
        raise AssertionError(f"enter took {dict(parameters)}, which the examples name as invalid")

    def _change(self) -> None:
        """Requests end, are preempted, and take free slots, with the tokens that they have by then."""
        for slot in list(self._running):
            ended = len(self._running[slot].tokens) >= LONGEST
            if ended or self._random.random() < 0.1:
                self._processor.leave(slot)
                request = self._running.pop(slot)
                self._tokens[slot] = self._poison
                if not ended and self._random.random() < 0.6:
                    self._waiting.append(request)
        for slot in set(range(SLOTS)) - self._running.keys():
            if self._own.refused and self._random.random() < 0.2:
                self.refuse(slot, self._random.choice(self._own.refused))
            if self._random.random() < 0.5:
                self._enter(slot)

    def _enter(self, slot: int) -> None:
        """What lies beyond the request's tokens is poison."""
        request = self._waiting.pop(0) if self._waiting and self._random.random() < 0.7 else self._made()
        self._running[slot] = request
        self._tokens[slot] = self._poison
        self._tokens[slot, : len(request.tokens)] = torch.tensor(request.tokens, dtype=torch.int32)
        entered(self._processor, slot, request.entry())

    def _made(self) -> Running:
        """Its tokens are few different ones, so that they repeat; some have embeddings in their place. Requests share
        their parameters, as samples of one do."""
        self._number += 1
        few = self._random.sample(self._known, self._random.choice((1, 2, 3, 9)))
        few += [VOCAB] if self._random.random() < 0.15 else []
        prompt = self._random.choice((1, 1, 2, 5, 17))
        tokens = [self._random.choice(few) for _ in range(prompt)]
        if self._random.random() < 0.15:
            tokens = self._with_images(few[0])
            prompt = len(tokens)
        return Running(self._number, tokens, prompt, self._parameters[self._number % len(self._parameters)])

    def _with_images(self, between: int) -> list[int]:
        """Several rows of embeddings with the same few tokens between, up to any place."""
        row = [VOCAB] * self._random.choice((1, 2, 4)) + [between] * self._random.choice((1, 2))
        return (row * 3)[: self._random.randint(2, 3 * len(row))]

    def _next(self, slot: int) -> int:
        known = self._running[slot].tokens if self._random.random() < 0.7 else self._known
        token = self._random.choice(known)
        return token if token != VOCAB else self._known[0]

    def _drafts(self, slot: int) -> list[int]:
        """Tokens that are guessed, and stand behind the known ones; what was rejected stays there."""
        at = len(self._running[slot].tokens)
        drafts = [self._next(slot) for _ in range(min(self._random.choice((0, 0, 0, 1, 3)), LONGEST - at))]
        self._tokens[slot, at : at + len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        return drafts

    def _extend(self, slot: int, drafts: list[int]) -> None:
        """Some of the drafts are accepted, and one token is sampled."""
        tokens = self._running[slot].tokens
        tokens += drafts[: self._random.randint(0, len(drafts))]
        if len(tokens) < LONGEST:
            self._tokens[slot, len(tokens)] = token = self._next(slot)
            tokens.append(token)

    def _logits(self, count: int) -> Tensor:
        logits = torch.randn(count, VOCAB, generator=self._drawn)
        for row in logits:
            match self._random.randrange(7):
                case 0:
                    row.mul_(self._random.choice((1e-6, 1e4, 1e6)))
                case 1:
                    row.zero_()
                case 2:
                    row[self._random.sample(range(VOCAB), self._random.choice((20, VOCAB - 2)))] = -torch.inf
                case 3:
                    row.abs_().mul_(self._random.choice((-1, 1)))
        return logits

    def _compare(self, drafts: Mapping[int, list[int]]) -> None:
        """A slot has a row for its next token, and one behind each draft."""
        places = [(slot, count) for slot, own in drafts.items() for count in range(len(own) + 1)]
        slots = torch.tensor([slot for slot, _ in places])
        lengths = torch.tensor([len(self._running[slot].tokens) + count for slot, count in places])
        logits = self._logits(len(places))
        for row, (slot, count) in zip(logits, places, strict=True):
            if self._random.random() < 0.1:  # as a grammar leaves tokens of the text alone
                text = {*self._running[slot].tokens, *drafts[slot][:count]} - {VOCAB}
                row[[token for token in range(VOCAB) if text and token not in text]] = -torch.inf
        rows = LogitsRows(tuple(slots.tolist()), slots.to(self._device), lengths.to(self._device))
        out = self._processor.apply(logits.to(self._device, copy=True), rows).cpu()
        for found, given, (slot, count) in zip(out, logits, places, strict=True):
            request = self._running[slot]
            self._compare_row(found, given, request, [*request.tokens, *drafts[slot][:count]])

    def _compare_row(self, found: Tensor, given: Tensor, request: Running, tokens: list[int]) -> None:
        right = _expected(_oracle(self._own), given, tokens, request)
        if right is not None:
            prompt = f"of which the first {request.num_prompt_tokens} are the prompt"
            what = f"seed {self._seed}, step {self._step}: tokens {tokens}, {prompt}, with {request.parameters}"
            closest(found, right, given, self._own.tolerance, what)


class _Large:
    """A batch with long requests, of which each row is compared once."""

    def __init__(self, kind: type[LogitsProcessor], device: torch.device, slots: int, longest: int) -> None:
        self._device = device
        self._random = random.Random(longest)
        self._tokens = torch.zeros(slots, longest + 1, dtype=torch.int32, device=device)
        self._processor = kind(LogitsBatch(self._tokens, WIDE))
        self._running: dict[int, Running] = {}

    def enter(self, slot: int, length: int, different: int, parameters: Parameters) -> None:
        """A request with so many tokens, of so many different ones, which have the largest ids."""
        few = [WIDE - 1 - number for number in range(different)]
        tokens = self._random.choices(few, k=length)
        prompt = self._random.choice((1, length))
        request = self._running[slot] = Running(slot, tokens, prompt, deepcopy(dict(parameters)))
        self._tokens[slot, :length] = torch.tensor(tokens, dtype=torch.int32)
        entered(self._processor, slot, request.entry())

    def compare(self, expected: Expected, tolerance: float) -> int:
        """All requests at once, with equal logits; returns how many there are."""
        given = torch.randn(WIDE, generator=torch.Generator().manual_seed(1))
        slots = list(self._running)
        index, lengths = torch.tensor(slots), torch.tensor([len(self._running[slot].tokens) for slot in slots])
        rows = LogitsRows(tuple(slots), index.to(self._device), lengths.to(self._device))
        logits = given.repeat(len(slots), 1).to(self._device)
        for found, request in zip(self._processor.apply(logits, rows).cpu(), self._running.values(), strict=True):
            right = _expected(expected, given, request.tokens, request)
            different, length = len(set(request.tokens)), len(request.tokens)
            what = f"{length} tokens, {different} different ones, of which the first {request.num_prompt_tokens} are"
            if right is not None:
                closest(found, right, given, tolerance, f"{what} the prompt, with {request.parameters}")
        return len(slots)


def _oracle(own: LogitsExamples) -> Expected:
    if own.expected is None:
        raise Skip("the spec's examples have no oracle: a function of one row")
    return own.expected


def _expected(oracle: Expected, given: Tensor, tokens: Sequence[int], request: Running) -> Tensor | None:
    """What the oracle says; ``None`` where it does not know of embeddings in place of tokens, whose id has no logit."""
    try:
        return oracle(given.clone(), list(tokens), request.num_prompt_tokens, deepcopy(dict(request.parameters)))
    except IndexError:
        if max(tokens) < len(given):
            raise
        return None


def _is_linear(own: LogitsExamples) -> bool:
    """Whether the oracle can be asked about long texts: plain code may compare each token with each other."""

    def ask(length: int) -> None:
        tokens = [number % 3 for number in range(length)]
        for number, parameters in enumerate(own.parameters):
            _expected(_oracle(own), torch.zeros(VOCAB), tokens, Running(number, tokens, 1, parameters))

    limit = 6 * counted_lines(partial(ask, 100)) + 1000
    return counted_lines(partial(ask, 400), limit) <= limit
