"""Sampling, log-probabilities, penalties, and the ops on the batch state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kernel_cases.harness import BATCHES, SHAPES, TINY, Case, Named
from llmk.reference import batch as reference_batch
from llmk.reference.sampling import sample as reference
from llmk_triton.batch import batch_state as batch
from llmk_triton.sampling import sample as sampling
from llmk_triton.sampling import vocabulary
from llmk_triton.sampling.logprobs import logprobs
from llmk_triton.sampling.penalties import apply_penalties

TRUNCATIONS: Mapping[str, Mapping[str, float]] = {
    "temperature": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "all": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
}
LENGTH = 2048
"""Tokens of a request whose repetitions are penalized."""

SWEPT = (
    *product(((1, 8), (1, 16), (2, 4), (2, 8)), ((8, 4), (16, 4), (16, 8)), ((8192, 16),)),
    *product(((2, 8),), ((8, 4),), ((4096, 8), (4096, 16), (16384, 32))),
)
"""Rounds and pivots, depth and warps of a part, open tokens at hand and warps of the program that chooses."""


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """All numbers of requests; logits lie in the device's cache as far as they fit, as they do behind a product."""
    vocab = (TINY if tiny else SHAPES)[0].vocab
    for rows in (3,) if tiny else BATCHES:
        yield f"greedy x{rows}", partial(_greedy, rows, vocab, torch.float32, device)
        yield f"greedy bf16 x{rows}", partial(_greedy, rows, vocab, torch.bfloat16, device)
        for name, truncation in TRUNCATIONS.items():
            yield f"sample {name} x{rows}", partial(_sample, rows, vocab, truncation, device)
        yield f"sample top-p 0.9 flat x{rows}", partial(_sample, rows, vocab, {"top_p": 0.9}, device, flat=True)
        for num_top in (0, 5, 20):
            yield f"logprobs {num_top} x{rows}", partial(_logprobs, rows, vocab, num_top, device)
        yield f"apply_penalties x{rows}", partial(_penalties, rows, vocab, 64 if tiny else LENGTH, device)
        for make in (_build_step, _compute_slot_mapping, _append_tokens):
            yield f"{make.__name__.removeprefix('_')} x{rows}", partial(make, rows, 1, device)
    tokens = 40 if tiny else 8192
    for make in (_build_step, _compute_slot_mapping):
        yield f"{make.__name__.removeprefix('_')} 2x{tokens}", partial(make, 2, tokens, device)
    yield f"update_rows 2x{tokens}", partial(_update_rows, 2, tokens, device)


def sweep(device: torch.device) -> Iterator[Named]:
    """Sampling in other numbers of rounds and sizes of parts, to choose those that ship."""
    vocab = SHAPES[0].vocab
    for rows, flat in ((64, False), (64, True), (1, False)):
        for (rounds, pivots), (depth, warps), (chunk, choosing) in SWEPT:
            settings = {"ROUNDS": rounds, "PIVOTS": pivots, "CHUNK": chunk, "CHOOSING_WARPS": choosing}
            part = {"DEPTH": depth, "WARPS": warps}
            name = f"{'flat ' * flat}x{rows} {rounds}r {pivots}p {depth}d {warps}w {chunk}c {choosing}w"
            make = partial(_sample, rows, vocab, {"top_p": 0.9}, device, flat=flat, settings=settings, part=part)
            yield f"sample {name}", make
    for depth, warps in ((4, 2), (4, 4), (8, 4), (8, 8), (16, 4), (16, 8)):
        part = {"DEPTH": depth, "WARPS": warps}
        for rows in (1, 64):
            yield f"greedy x{rows} {depth}d {warps}w", partial(_greedy, rows, vocab, torch.bfloat16, device, part=part)
            yield f"logprobs 5 x{rows} {depth}d {warps}w", partial(_logprobs, rows, vocab, 5, device, part=part)


def _logits(rows: int, vocab: int, device: torch.device, *, flat: bool = False) -> Tensor:
    """As of a model: a few tokens stand out. ``flat``: as of random weights."""
    logits = torch.randn(rows, vocab, device=device) * (1 if flat else 2.5)
    if not flat:
        logits[:, :: vocab // 20] += 8
    return logits


def _set(settings: Mapping[str, Any] | None, part: Mapping[str, Any] | None) -> None:
    for module, changes in ((sampling, settings), (vocabulary, part)):
        for name, value in (changes or {}).items():
            setattr(module, name, value)


def _greedy(
    rows: int, vocab: int, dtype: torch.dtype, device: torch.device, part: Mapping[str, Any] | None = None
) -> Case:
    logits = _logits(rows, vocab, device).to(dtype)
    none = (None,) * 6

    def run(i: int) -> Tensor:
        _set(None, part)
        return sampling.sample(logits, *none)

    return Case(run, lambda: reference.sample(logits, *none), logits.nbytes, tolerance=0)


def _sample(
    rows: int,
    vocab: int,
    truncation: Mapping[str, float],
    device: torch.device,
    *,
    flat: bool = False,
    settings: Mapping[str, Any] | None = None,
    part: Mapping[str, Any] | None = None,
) -> Case:
    logits = _logits(rows, vocab, device, flat=flat)
    real = torch.tensor([[0.8, truncation.get("top_p", 1.0), truncation.get("min_p", 0.0)]], device=device)
    whole = torch.tensor([[int(truncation.get("top_k", 0)), 7]], device=device)
    real, whole = real.repeat(rows, 1), whole.repeat(rows, 1)
    columns = {"top_k": whole[:, 0], "top_p": real[:, 1], "min_p": real[:, 2]}
    given = {name: column if name in truncation else None for name, column in columns.items()}
    given |= {"temperature": real[:, 0], "seeds": whole[:, 1], "positions": torch.arange(rows, device=device)}

    def run(i: int) -> Tensor:
        _set(settings, part)
        return sampling.sample(logits, **given)

    return Case(run, lambda: reference.sample(logits, **given), logits.nbytes, tolerance=0)


def _logprobs(rows: int, vocab: int, num_top: int, device: torch.device, part: Mapping[str, Any] | None = None) -> Case:
    logits = _logits(rows, vocab, device)
    ids = torch.randint(0, vocab, (rows,), device=device)

    def run(i: int) -> Any:
        _set(None, part)
        return logprobs(logits, ids, num_top)

    return Case(run, lambda: reference.logprobs(logits, ids, num_top), logits.nbytes, tolerance=1e-5)


def _penalties(rows: int, vocab: int, length: int, device: torch.device) -> Case:
    logits = _logits(rows, vocab, device)
    tokens = torch.randint(0, vocab, (rows, length), device=device, dtype=torch.int32)
    index = torch.arange(rows, device=device)
    lengths = torch.full((rows,), length // 2, device=device), torch.full((rows,), length, device=device)
    table = torch.tensor([0.1, 0.2, 1.0], device=device).repeat(rows, 1)
    rest = (index, tokens, index, *lengths, *table.unbind(1))
    # Logits that are penalized again and again stay finite, and the first time is checked.
    expected = reference.apply_penalties(logits.clone(), *rest)
    return Case(lambda i: apply_penalties(logits, *rest), lambda: expected, 3 * 4 * rows * length, tolerance=1e-6)


def _state(requests: int, queries: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, 1000, (requests + 1, queries + 512), device=device, dtype=torch.int32)
    slots = torch.randperm(requests, device=device)
    return tokens, torch.full((requests + 1,), 100, device=device), slots, torch.full_like(slots, queries)


def _build_step(requests: int, queries: int, device: torch.device) -> Case:
    """With the copy that puts ``computed`` back where it was."""
    tokens, computed, slots, counts = _state(requests, queries, device)
    before, total = computed.clone(), requests * queries

    def run(i: int) -> Any:
        computed.copy_(before)
        return batch.build_step(tokens, computed, slots, counts, total)

    def expected() -> Any:
        return reference_batch.build_step(tokens, before.clone(), slots, counts, total)

    return Case(run, expected, 28 * total, tolerance=0)


def _compute_slot_mapping(requests: int, queries: int, device: torch.device) -> Case:
    """With the bounds that a recorded step has: as many blocks as there may ever be."""
    tokens, computed, slots, counts = _state(requests, queries, device)
    step = reference_batch.build_step(tokens, computed, slots, counts, requests * queries)
    blocks = max(256, -(-(queries + 100) // 16))
    table = torch.randint(0, 9999, (requests + 1, blocks + 1), device=device, dtype=torch.int32)
    arguments = (table, slots, step.rows, step.positions, 16, blocks)
    moved = 8 * requests * blocks + 24 * requests * queries
    return Case(
        lambda i: batch.compute_slot_mapping(*arguments),
        lambda: reference_batch.compute_slot_mapping(*arguments),
        moved,
        tolerance=0,
    )


def _append_tokens(requests: int, queries: int, device: torch.device) -> Case:
    tokens, computed, slots, sampled = _state(requests, queries, device)
    other = tokens.clone()

    def run(i: int) -> Tensor:
        batch.append_tokens(tokens, computed, slots, sampled)
        return tokens

    def expected() -> Tensor:
        reference_batch.append_tokens(other, computed, slots, sampled)
        return other

    return Case(run, expected, 28 * requests, tolerance=0)


def _update_rows(runs: int, length: int, device: torch.device) -> Case:
    table = torch.zeros(runs + 1, length + 9, dtype=torch.int32, device=device)
    other, rows = table.clone(), torch.arange(runs, device=device)
    rest = (rows, rows + 3, torch.full_like(rows, length), torch.arange(runs * length, device=device))

    def run(i: int) -> Tensor:
        batch.update_rows(table, *rest)
        return table

    def expected() -> Tensor:
        reference_batch.update_rows(other, *rest)
        return other

    return Case(run, expected, 12 * runs * length, tolerance=0)
