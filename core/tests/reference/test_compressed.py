"""Attention to the last tokens and to entries, against the sums as they are written, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.attention.compressed import compressed_attention, select_entries
from llmk.reference.examples.compressed import COMPRESSED_ATTENTION, SELECT_ENTRIES
from llmk.reference.op_examples import Draw

SELECTS, ATTENDS = SELECT_ENTRIES.facts_at(), COMPRESSED_ATTENTION.facts_at()


def draw(seed: int = 1, dtype: torch.dtype = torch.float32) -> Draw:
    return Draw(torch.Generator().manual_seed(seed), dtype)


def known(step: CacheStep, request: int, cache: Tensor) -> Tensor:
    """The rows of all tokens of a request, float64."""
    positions = torch.arange(int(step.seq_lens[request]))
    blocks = step.block_table[request, positions // step.block_size].long()
    return cache[blocks, positions % step.block_size].double()


def tokens(step: CacheStep) -> list[tuple[int, int, int]]:
    """Of each token of a step: its row, its request, and its position."""
    found = []
    for request, (count, length) in enumerate(zip(step.host_query_lens, step.host_seq_lens, strict=True)):
        first = int(step.query_start[request])
        found += [(first + i, request, length - count + i) for i in range(count)]
    return found


def entry(rows: Tensor, bias: Tensor, weight: Tensor, eps: float, cos_sin: Tensor, group: int, size: int) -> Tensor:
    """That of a group, by the rows of all tokens of a request, float64."""
    rate, width = bias.shape
    start, values, gates = group * rate, [], []
    for at in range(start - rate if width > size else start, start + rate):
        if at >= 0:
            part = slice(0, size) if at < start else slice(width - size, width)
            values.append(rows[at, :width][part])
            gates.append(rows[at, width:][part] + bias[at % rate].double()[part])
    mean = (torch.stack(values) * torch.stack(gates).softmax(0)).sum(0)
    normed = mean / (mean.square().mean() + eps).sqrt() * weight.double()
    rot = cos_sin.shape[1]
    even, odd = normed[-rot:].unflatten(0, (-1, 2)).unbind(1)
    cos, sin = cos_sin[start].double().chunk(2)
    return torch.cat((normed[:-rot], torch.stack((even * cos - odd * sin, odd * cos + even * sin), 1).flatten()))


@pytest.mark.parametrize("facts", ATTENDS, ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_attends_to_the_window_and_entries(facts: dict[str, int], rows: int) -> None:
    arguments = COMPRESSED_ATTENTION.make(draw(), facts, rows)
    q, _, _, bias, weight, eps, cos_sin, selected, sinks, caches, step = arguments
    before = [entries.clone() for entries in caches[2:]]
    out = compressed_attention(*arguments, window=facts["window"], scale=0.2)
    for row, request, position in tokens(step):
        keys = known(step, request, caches[0])
        seen = [keys[at] for at in range(max(0, position - facts["window"] + 1), position + 1)]
        complete = (position + 1) // facts["rate"] if facts["rate"] else 0
        stored = known(step, request, before[0]) if before else keys
        computed = int(step.seq_lens[request]) - step.host_query_lens[request]
        for group in range(complete):
            end = (group + 1) * facts["rate"] - 1
            if selected is None or group in selected[row].tolist():
                made = (known(step, request, caches[1]), bias, weight, eps, cos_sin, group, q.shape[2])
                seen.append(stored[end] if end < computed else entry(*made))
        logits = torch.cat((q[row].double() @ torch.stack(seen).T * 0.2, sinks.double()[:, None]), 1)
        expected = logits.softmax(1)[:, :-1] @ torch.stack(seen)
        assert (out[row] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("facts", SELECTS, ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_selects_the_greatest_sums_of_complete_groups(facts: dict[str, int], rows: int) -> None:
    arguments = SELECT_ENTRIES.make(draw(), facts, rows)
    q, weights, *_, caches, step = arguments
    selected = select_entries(*arguments, top_k=facts["top_k"])
    for row, request, position in tokens(step):
        complete = (position + 1) // facts["rate"]
        entries = known(step, request, caches[1])[facts["rate"] - 1 :: facts["rate"]][:complete]
        sums = (weights[row].double()[:, None] * (q[row].double() @ entries.T).relu()).sum(0)
        own = [int(place) for place in selected[row] if place >= 0]
        assert own == sorted(set(own)), "ascending, each once"
        assert len(own) == min(facts["top_k"], complete)
        others = [place for place in range(complete) if place not in own]
        assert not others or not own or sums[own].min() >= sums[others].max() - 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("facts", ATTENDS, ids=str)
def test_results_do_not_depend_on_the_batch(facts: dict[str, int], dtype: torch.dtype) -> None:
    """Bit for bit: each request alone, and with others."""
    arguments = COMPRESSED_ATTENTION.make(draw(dtype=dtype), facts, 9)
    *_, step = arguments
    options: dict[str, Any] = {"window": facts["window"], "scale": 0.2}

    def attend(given: Any, own: slice, step: CacheStep) -> Tensor:
        q, kv, rows, *made, selected, sinks, caches, _ = given
        by_token = [each if each is None else each[own] for each in (q, kv, rows, selected)]
        kept = tuple(cache.clone() for cache in caches)
        return compressed_attention(*by_token[:3], *made, by_token[3], sinks, kept, step, **options)

    together = attend(arguments, slice(None), step)
    for request, count in enumerate(step.host_query_lens):
        first = int(step.query_start[request])
        own = slice(first, first + count)
        alone = replace(
            step,
            query_start=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=step.seq_lens[request : request + 1],
            block_table=step.block_table[request : request + 1],
            slot_mapping=step.slot_mapping[own],
            num_requests=1,
            num_tokens=count,
        )
        assert torch.equal(attend(arguments, own, alone), together[own])
