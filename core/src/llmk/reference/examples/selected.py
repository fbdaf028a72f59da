"""Inputs of attention to selected tokens: steps with cached rows; what nothing was written to is NaN."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.op_examples import Draw, Facts, OpExamples

_BLOCK = 16
_WORK = ((0, 37), (20, 21), (15, 40), (0, 3))
"""The tokens of each request in the step: new prompts, a decode, and a chunk."""
_DECODES = ((20, 21), (31, 32), (150, 151))
EPS = 1e-6


def step_of(draw: Draw, rows: int) -> tuple[CacheStep, Tensor, int]:
    """A step, the slots of all tokens before it, and the number of blocks. With one row, it contains only decodes."""
    work = _DECODES if rows == 1 else _WORK
    each = -(-max(stop for _, stop in work) // _BLOCK)
    order = draw.order(len(work) * each + 1)
    table, poison = order[:-1].view(len(work), each).clone(), int(order[-1])
    slots = [
        [int(table[i, at // _BLOCK]) * _BLOCK + at % _BLOCK for at in range(stop)] for i, (_, stop) in enumerate(work)
    ]
    for i, (_, stop) in enumerate(work):
        table[i, -(-stop // _BLOCK) :] = poison
    counts = [stop - start for start, stop in work]
    step = CacheStep(
        query_start=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor([stop for _, stop in work], dtype=torch.int32),
        block_table=table.to(torch.int32),
        slot_mapping=torch.tensor([slot for own, (start, _) in zip(slots, work, strict=True) for slot in own[start:]]),
        num_requests=len(work),
        num_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=max(stop for _, stop in work),
        block_size=_BLOCK,
        host_query_lens=counts,
        host_seq_lens=[stop for _, stop in work],
    )
    before = [slot for own, (start, _) in zip(slots, work, strict=True) for slot in own[:start]]
    return step, torch.tensor(before), order.numel()


def cache_of(draw: Draw, before: Tensor, blocks: int, size: int) -> Tensor:
    cache = torch.full((blocks, _BLOCK, size), torch.nan, dtype=draw.dtype)
    cache[before // _BLOCK, before % _BLOCK] = draw.floats(len(before), size)
    return cache


def positions_of(step: CacheStep) -> Tensor:
    lengths = zip(step.host_query_lens, step.host_seq_lens, strict=True)
    return torch.cat([torch.arange(end - count, end) for count, end in lengths])


def _select(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``select_tokens``."""
    step, before, blocks = step_of(draw, rows)
    heads, size = facts["num_heads"], facts["head_dim"]
    q, k = draw.floats(step.num_tokens, heads, size), draw.floats(step.num_tokens, size)
    return q, k, draw.floats(step.num_tokens, heads), cache_of(draw, before, blocks, size), step


def _picked(draw: Draw, step: CacheStep, top_k: int) -> Tensor:
    """Of each token, earlier ones and itself, ascending."""
    found = torch.full((step.num_tokens, top_k), -1, dtype=torch.int32)
    for row, position in enumerate(positions_of(step).tolist()):
        own = draw.order(position + 1)[:top_k].sort().values
        found[row, : len(own)] = own.to(torch.int32)
    return found


def _attend(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``selected_attention``."""
    step, before, blocks = step_of(draw, rows)
    size = facts["kv_lora_rank"] + facts["qk_rope_head_dim"]
    query, row = draw.floats(step.num_tokens, facts["num_heads"], size), draw.floats(step.num_tokens, size)
    return query, row, _picked(draw, step, facts["top_k"]), cache_of(draw, before, blocks, size), step


def _latent(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``selected_latent_attention``."""
    step, before, blocks = step_of(draw, rows)
    heads, rank, key = (facts[name] for name in ("num_heads", "kv_lora_rank", "qk_nope_head_dim"))
    rotary, value = facts["qk_rope_head_dim"], facts["v_head_dim"]
    tokens = step.num_tokens
    angles = draw.reals(200, rotary // 2)
    given = draw.floats(tokens, heads, key + rotary), draw.floats(tokens, rank + rotary), draw.floats(rank), EPS
    ups = draw.floats(heads, key, rank, scale=key**-0.5), draw.floats(heads, rank, value, scale=rank**-0.5)
    turned = positions_of(step), torch.cat((angles.cos(), angles.sin()), 1)
    selected, cache = _picked(draw, step, facts["top_k"]), cache_of(draw, before, blocks, rank + rotary)
    return *given, *ups, *turned, selected, cache, step


_LATENT: Facts = {
    "num_heads": 6,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "top_k": 12,
}
_LATENTS = (_LATENT, {**_LATENT, "num_heads": 16, "kv_lora_rank": 64, "top_k": 64})

SELECT_TOKENS = OpExamples(
    ({"num_heads": 6, "head_dim": 20, "top_k": 12}, {"num_heads": 16, "head_dim": 64, "top_k": 64}),
    _select,
    keywords=lambda draw, facts: {"top_k": facts["top_k"]},
)
SELECTED_ATTENTION = OpExamples(
    _LATENTS,
    _attend,
    keywords=lambda draw, facts: {"scale": 0.2, "latent_dim": facts["kv_lora_rank"]},
)
SELECTED_LATENT_ATTENTION = OpExamples(_LATENTS, _latent, keywords=lambda draw, facts: {"scale": 0.2}, chained=True)
