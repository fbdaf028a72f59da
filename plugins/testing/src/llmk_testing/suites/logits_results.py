"""Compares a logits processor with its oracle: one instance over many steps, in which requests come, go, and return,
with tokens that repeat, and logits that are huge, equal, or ruled out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsProcessor, LogitsProcessorSpec, LogitsRequest, LogitsRows, RequestError
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.logits_examples import LogitsExamples, Parameters

SLOTS, LONGEST, VOCAB = 6, 40, 37
STEPS = 60
POISON = VOCAB - 1
"""The token beyond the ends of requests, which none of them has."""


@dataclass(slots=True)
class Running:
    """A request: its tokens, of which the first are the prompt, and its parameters."""

    number: int
    tokens: list[int]
    num_prompt_tokens: int
    parameters: Parameters


def check_oracle(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """Every row of every step is what the oracle makes of it."""
    if own.expected is None:
        raise Skip("the spec's examples have no oracle: a function of one row")
    rows = 0
    for seed in range(bench.seed, bench.seed + (12 if bench.thorough else 3)):
        rows += Steps(load_object(spec.implementation), bench.device, own, seed).run()
    return f"{rows} rows"


def check_refused(spec: LogitsProcessorSpec, bench: Bench, own: LogitsExamples) -> str:
    """The invalid parameters that the examples name must be refused."""
    made = Steps(load_object(spec.implementation), bench.device, own, 0)
    for parameters in own.refused:
        try:
            made.enter(0, Running(0, [1, 2], 2, parameters))
        except RequestError:
            continue
        raise AssertionError(f"enter took {dict(parameters)}, which the examples name as invalid")
    return f"{len(own.refused)} refused"


class Steps:
    """One instance and the requests that it serves, drawn from a seed."""

    def __init__(self, kind: type[LogitsProcessor], device: torch.device, own: LogitsExamples, seed: int) -> None:
        self._own, self._device, self._seed = own, device, seed
        self._random = random.Random(seed)
        self._drawn = torch.Generator().manual_seed(seed)
        self._tokens = torch.full((SLOTS, LONGEST + 1), POISON, dtype=torch.int32, device=device)
        self._processor = kind(LogitsBatch(self._tokens, VOCAB))
        self._running: dict[int, Running] = {}
        self._waiting: list[Running] = []
        self._number = 0

    def run(self) -> int:
        """Plays all steps; returns the number of rows that were compared."""
        rows = 0
        for step in range(STEPS):
            self._change()
            slots = [slot for slot in self._running if self._random.random() < 0.8]
            self._random.shuffle(slots)
            if slots:
                self._compare(slots, f"seed {self._seed}, step {step}")
            for slot in slots:
                self._extend(slot)
            rows += len(slots)
        return rows

    def enter(self, slot: int, request: Running) -> None:
        """The request takes a slot; what lies beyond its tokens is poison."""
        self._tokens[slot] = POISON
        self._tokens[slot, : len(request.tokens)] = torch.tensor(request.tokens, dtype=torch.int32)
        prompt, parameters = request.num_prompt_tokens, dict(request.parameters)
        self._processor.enter(
            slot, LogitsRequest(f"request-{request.number}", list(request.tokens), prompt, parameters)
        )

    def _change(self) -> None:
        """Requests end, are preempted, and take free slots, with the tokens that they have by then."""
        for slot in list(self._running):
            ended = len(self._running[slot].tokens) >= LONGEST
            if ended or self._random.random() < 0.1:
                self._processor.leave(slot)
                request = self._running.pop(slot)
                self._tokens[slot] = POISON
                if not ended and self._random.random() < 0.6:
                    self._waiting.append(request)
        for slot in set(range(SLOTS)) - self._running.keys():
            if self._random.random() < 0.5:
                request = self._waiting.pop(0) if self._waiting and self._random.random() < 0.7 else self._made()
                self.enter(slot, request)
                self._running[slot] = request

    def _made(self) -> Running:
        """Its tokens are few different ones, so that they repeat."""
        self._number += 1
        few = self._random.sample(range(POISON), self._random.choice((1, 2, 3, 9)))
        prompt = self._random.choice((1, 1, 2, 5, 17))
        own = self._own.parameters
        tokens = [self._random.choice(few) for _ in range(prompt)]
        return Running(self._number, tokens, prompt, own[self._number % len(own)])

    def _extend(self, slot: int) -> None:
        request = self._running[slot]
        known = request.tokens if self._random.random() < 0.7 else range(POISON)
        token = self._random.choice(known)
        self._tokens[slot, len(request.tokens)] = token
        request.tokens.append(token)

    def _logits(self, count: int) -> Tensor:
        logits = torch.randn(count, VOCAB, generator=self._drawn)
        for row in logits:
            match self._random.randrange(5):
                case 0:
                    row.mul_(1e4)
                case 1:
                    row.zero_()
                case 2:
                    row[self._random.sample(range(VOCAB), 20)] = -torch.inf
        return logits

    def _compare(self, slots: Sequence[int], what: str) -> None:
        assert self._own.expected is not None
        logits = self._logits(len(slots))
        requests = [self._running[slot] for slot in slots]
        lengths = torch.tensor([len(request.tokens) for request in requests])
        rows = LogitsRows(tuple(slots), torch.tensor(slots).to(self._device), lengths.to(self._device))
        out = self._processor.apply(logits.to(self._device, copy=True), rows).cpu()
        for found, given, request in zip(out, logits, requests, strict=True):
            tokens, parameters = list(request.tokens), dict(request.parameters)
            right = self._own.expected(given.clone(), tokens, request.num_prompt_tokens, parameters)
            tolerance = self._own.tolerance
            close = torch.isclose(found, right, rtol=tolerance, atol=tolerance)
            if not close.all():
                token = int((~close).nonzero()[0])
                values = f"{float(found[token]):.6g}, expected {float(right[token]):.6g} of {float(given[token]):.6g}"
                raise AssertionError(
                    f"{what}: the logit of token {token} is {values}; tokens {tokens}, of which the first"
                    f" {request.num_prompt_tokens} are the prompt, with {parameters}"
                )
