"""How a recurrence walks over a step: from the state before each request's tokens to the state after them, keeping what
the cache is to hold on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from llmk.api.cache import CacheStep

Rule = Callable[..., tuple[Tensor, Tensor]]
"""``rule(state, *inputs) -> (outputs, state)``: advances the states ``[requests, *shape]`` of some requests over
equally many tokens of each. Inputs and outputs are ``[requests, tokens, ...]``. It changes nothing in place."""


class _Run(NamedTuple):
    """Several tokens of one request."""

    request: int
    first: int
    """Row of the first one."""
    num_tokens: int
    before: int
    """Tokens of the request that came before."""


Index = slice | Tensor


def walk(
    rule: Rule, inputs: Sequence[Tensor], out: Tensor, cache: Tensor, step: CacheStep, *, longest: int = 1 << 30
) -> None:
    """Applies ``rule`` to all tokens of a step: fills ``out``, and keeps in ``cache`` the state after every token that
    fills a block and after each request's last.

    Requests with one token advance together; every other one alone, its tokens cut where a block ends. A step in which
    every request has one token never waits for the device; others read lengths and block ids back.

    Args:
        inputs: ``[tokens, ...]`` each.
        out: ``[tokens, ...]``; rows beyond the step's true tokens are left alone.
        cache: ``[num_blocks, *shape]``; states reach the rule, and are kept, in its dtype.
        longest: most tokens that the rule is given at once.
    """
    together, runs = _partition(step)
    if together is not None:
        _advance_together(rule, inputs, out, cache, step, *together)
    for run in runs:
        _advance_alone(rule, inputs, out, cache, step, run, longest)


def _partition(step: CacheStep) -> tuple[tuple[Index, Index] | None, list[_Run]]:
    """Requests with one token, as an index of requests and one of their rows; and all others."""
    requests = step.num_requests
    if step.max_query_len == 1 and step.num_tokens == requests:
        return (slice(requests), slice(requests)), []
    starts = step.query_start[: requests + 1].tolist()
    lengths = step.seq_lens[:requests].tolist()
    counts = [stop - start for start, stop in pairwise(starts)]
    runs = [_Run(i, starts[i], n, lengths[i] - n) for i, n in enumerate(counts) if n > 1]
    ones = [i for i, n in enumerate(counts) if n == 1]
    if not ones:
        return None, runs
    index = torch.tensor([ones, [starts[i] for i in ones]], device=step.seq_lens.device)
    return (index[0], index[1]), runs


def _advance_together(
    rule: Rule, inputs: Sequence[Tensor], out: Tensor, cache: Tensor, step: CacheStep, requests: Index, rows: Index
) -> None:
    last = step.seq_lens[requests].to(torch.int64) - 1
    table = step.block_table[requests]
    begun = (last > 0).view(-1, *[1] * (cache.dim() - 1))
    # What a request's own first block holds before its first token may be anything, NaN too: it is replaced.
    state = torch.where(begun, cache[_blocks(table, last - 1, step.block_size)], 0.0)
    outputs, state = rule(state, *(x[rows].unsqueeze(1) for x in inputs))
    out[rows] = outputs.squeeze(1).to(out.dtype)
    cache[_blocks(table, last, step.block_size)] = state.to(cache.dtype)


def _blocks(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """The block of each request's token at ``positions``, int64 ``[requests]``; the first where there is none, as in
    steps in which kernels are left out (:class:`llmk.api.Compiling`)."""
    return table.gather(1, (positions.clamp(min=0) // block_size).unsqueeze(1)).squeeze(1).to(torch.int64)


def _advance_alone(
    rule: Rule, inputs: Sequence[Tensor], out: Tensor, cache: Tensor, step: CacheStep, run: _Run, longest: int
) -> None:
    size = step.block_size
    blocks = step.block_table[run.request].tolist()
    if run.before:
        state = cache[blocks[(run.before - 1) // size]].unsqueeze(0)
    else:
        state = cache.new_zeros(1, *cache.shape[1:])
    done = 0
    while done < run.num_tokens:
        start, left_in_block = done, size - (run.before + done) % size
        done = min(run.num_tokens, start + longest, start + left_in_block)
        rows = slice(run.first + start, run.first + done)
        outputs, state = rule(state, *(x[rows].unsqueeze(0) for x in inputs))
        out[rows] = outputs.squeeze(0)
        after = run.before + done
        if done == run.num_tokens or after % size == 0:
            cache[blocks[(after - 1) // size]] = state[0]
