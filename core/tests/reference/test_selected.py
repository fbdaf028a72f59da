"""Attention to selected tokens against attention over all of them, and what selects them against the sums as the paper
writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.attention.selected import select_tokens, selected_attention
from llmk.reference.examples.selected import SELECT_TOKENS, SELECTED_ATTENTION
from llmk.reference.op_examples import Draw

SELECTS, ATTENDS = SELECT_TOKENS.facts_at(), SELECTED_ATTENTION.facts_at()


def draw(seed: int = 1, dtype: torch.dtype = torch.float32) -> Draw:
    return Draw(torch.Generator().manual_seed(seed), dtype)


def known(step: CacheStep, request: int, cache: Tensor) -> Tensor:
    """The rows of all tokens of a request."""
    positions = torch.arange(int(step.seq_lens[request]))
    return cache[step.block_table[request, positions // step.block_size].long(), positions % step.block_size]


def tokens(step: CacheStep) -> list[tuple[int, int, int]]:
    """Of each token of a step: its row, its request, and its position."""
    found = []
    for request, (count, length) in enumerate(zip(step.host_query_lens, step.host_seq_lens, strict=True)):
        first = int(step.query_start[request])
        found += [(first + i, request, length - count + i) for i in range(count)]
    return found


@pytest.mark.parametrize("facts", SELECTS, ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_selects_the_greatest_sums(facts: dict[str, int], rows: int) -> None:
    q, k, weights, cache, step = SELECT_TOKENS.make(draw(), facts, rows)
    selected = select_tokens(q, k, weights, cache, step, top_k=facts["top_k"])
    for row, request, position in tokens(step):
        keys = known(step, request, cache)[: position + 1].double()
        sums = (weights[row].double()[:, None] * (q[row].double() @ keys.T).relu()).sum(0)
        own = [int(place) for place in selected[row] if place >= 0]
        assert own == sorted(set(own)), "ascending, each once"
        assert len(own) == min(facts["top_k"], position + 1)
        others = [place for place in range(position + 1) if place not in own]
        assert not others or sums[own].min() >= sums[others].max() - 1e-4
    assert known(step, 0, cache).isfinite().all(), "the step's own keys are stored first"


def test_of_equal_tokens_the_first_are_selected() -> None:
    q, k, weights, cache, step = SELECT_TOKENS.make(draw(), SELECTS[0], 1)
    selected = select_tokens(torch.zeros_like(q), k, weights, cache, step, top_k=5)
    assert selected.tolist() == [[0, 1, 2, 3, 4]] * len(selected)


@pytest.mark.parametrize("facts", ATTENDS, ids=str)
def test_attention_to_all_tokens_is_dense(facts: dict[str, int]) -> None:
    query, row, _, cache, step = SELECTED_ATTENTION.make(draw(), facts, 9)
    everything = torch.full((step.num_tokens, 64), -1, dtype=torch.int32)
    for at, _, position in tokens(step):
        everything[at, : position + 1] = torch.arange(position + 1)
    rank = facts["kv_lora_rank"]
    out = selected_attention(query, row, everything, cache, step, scale=0.2, latent_dim=rank)
    for at, request, position in tokens(step):
        rows = known(step, request, cache)[: position + 1].double()
        expected = (query[at].double() @ rows.T * 0.2).softmax(-1) @ rows[:, :rank]
        assert (out[at] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    """Bit for bit: each request alone, and with others."""
    q, k, weights, keys, step = SELECT_TOKENS.make(draw(dtype=dtype), SELECTS[1], 9)
    query, row, picked, rows, _ = SELECTED_ATTENTION.make(draw(dtype=dtype), ATTENDS[1], 9)
    selected = select_tokens(q, k, weights, keys.clone(), step, top_k=30)
    attended = selected_attention(query, row, picked, rows.clone(), step, scale=0.2, latent_dim=64)
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
        assert torch.equal(select_tokens(q[own], k[own], weights[own], keys.clone(), alone, top_k=30), selected[own])
        given = query[own], row[own], picked[own], rows.clone(), alone
        assert torch.equal(selected_attention(*given, scale=0.2, latent_dim=64), attended[own])
