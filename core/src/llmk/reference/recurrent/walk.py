"""Runs a recurrence over a step: reads each request's state from the cache, advances it over the request's tokens, and
stores the states that the cache must contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from llmk.api.cache import CacheStep

Rule = Callable[..., tuple[Tensor, Tensor]]
"""``rule(state, *inputs) -> (outputs, state)``: advances the states ``[requests, *shape]`` of requests with equal
numbers of tokens. Inputs and outputs are ``[requests, tokens, ...]``. It must not change its arguments."""


class _Run(NamedTuple):
    """Consecutive tokens of one request."""

    request: int
    first: int
    """Row of the first one."""
    num_tokens: int
    before: int
    """Tokens of the request in earlier steps."""
    num_drafts: int
    """How many of these tokens are drafts."""


Index = slice | Tensor


def walk(
    rule: Rule,
    inputs: Sequence[Tensor],
    out: Tensor,
    cache: Tensor,
    step: CacheStep,
    *,
    longest: int = 1 << 30,
    wide: torch.dtype | None = None,
) -> None:
    """Applies ``rule`` to all tokens of a step. Fills ``out``, and stores in ``cache`` the state after every token that
    fills a block and after each request's last token, drafts apart.

    Requests with one token advance in one batch; every other request advances alone, block by block. A step in which
    every request has one token never synchronizes with the device; other steps read lengths and block ids back to the
    host.

    Args:
        inputs: ``[tokens, ...]`` each.
        out: ``[tokens, ...]``; rows of padding are not changed.
        cache: ``[num_blocks, *shape]``; states are stored in its dtype.
        longest: most tokens per call of the rule.
        wide: the dtype in which the rule gets states; ``None``: that of ``cache``.
    """
    decode, runs = _partition(step)
    wide = wide or cache.dtype
    if decode is not None:
        _advance_decode(rule, inputs, out, cache, step, *decode, wide)
    for run in runs:
        _advance_run(rule, inputs, out, cache, step, run, longest, wide)


def _partition(step: CacheStep) -> tuple[tuple[Index, Index] | None, list[_Run]]:
    """The requests with one token, as indices of requests and of their rows; and the runs of all other requests."""
    requests = step.num_requests
    if step.tails is None and step.max_query_len == 1 and step.num_tokens == requests:
        return (slice(requests), slice(requests)), []
    starts = step.query_start[: requests + 1].tolist()
    lengths = step.seq_lens[:requests].tolist()
    counts = [stop - start for start, stop in pairwise(starts)]
    drafts = [0] * requests if step.tails is None else step.tails.num_drafts.tolist()
    runs = [_Run(i, starts[i], n, lengths[i] - n, drafts[i]) for i, n in enumerate(counts) if n > 1]
    ones = [i for i, n in enumerate(counts) if n == 1]
    if not ones:
        return None, runs
    index = torch.tensor([ones, [starts[i] for i in ones]], device=step.seq_lens.device)
    return (index[0], index[1]), runs


def _advance_decode(
    rule: Rule,
    inputs: Sequence[Tensor],
    out: Tensor,
    cache: Tensor,
    step: CacheStep,
    requests: Index,
    rows: Index,
    wide: torch.dtype,
) -> None:
    last = step.seq_lens[requests].to(torch.int64) - 1
    table = step.block_table[requests]
    has_state = (last > 0).view(-1, *[1] * (cache.dim() - 1))
    # Before a request's first token, its first block may contain anything, even NaN, so the state is replaced by zeros.
    state = torch.where(has_state, cache[_blocks(table, last - 1, step.block_size)], 0.0).to(wide)
    outputs, state = rule(state, *(x[rows].unsqueeze(1) for x in inputs))
    out[rows] = outputs.squeeze(1).to(out.dtype)
    cache[_blocks(table, last, step.block_size)] = state.to(cache.dtype)


def _blocks(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """The block of each request's token at ``positions``, int64 ``[requests]``. Negative positions give the first
    block; they occur in steps in which kernels are skipped (:class:`llmk.api.Compiling`)."""
    return table.gather(1, (positions.clamp(min=0) // block_size).unsqueeze(1)).squeeze(1).to(torch.int64)


def _advance_run(
    rule: Rule,
    inputs: Sequence[Tensor],
    out: Tensor,
    cache: Tensor,
    step: CacheStep,
    run: _Run,
    longest: int,
    wide: torch.dtype,
) -> None:
    size = step.block_size
    blocks = step.block_table[run.request].tolist()
    if run.before:
        state = cache[blocks[(run.before - 1) // size]].unsqueeze(0).to(wide)
    else:
        state = cache.new_zeros(1, *cache.shape[1:], dtype=wide)
    done, known = 0, run.num_tokens - run.num_drafts
    while done < run.num_tokens:
        start, left_in_block = done, size - (run.before + done) % size
        done = min(known if start < known else run.num_tokens, start + longest, start + left_in_block)
        rows = slice(run.first + start, run.first + done)
        outputs, state = rule(state, *(x[rows].unsqueeze(0) for x in inputs))
        out[rows] = outputs.squeeze(0)
        after = run.before + done
        if done == known or (done < known and after % size == 0):
            cache[blocks[(after - 1) // size]] = state[0]
