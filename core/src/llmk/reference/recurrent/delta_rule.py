"""The gated delta rule (arXiv:2412.06464), in chunks and token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.recurrent.chunk import CHUNK, decay_between
from llmk.reference.recurrent.walk import walk

_EPS = 1e-6
"""Epsilon of the L2 norm of queries and keys."""


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    """The gated delta rule, in float32, for each head's state ``S``: ``S = exp(g) * S``, ``S = S + beta * (v - S k)
    k^T``, ``y = S q``.

    Queries and keys are first L2-normalized, and queries divided by the square root of ``key_dim``.

    Args:
        q, k: ``[tokens, key_heads, key_dim]``; head ``i`` reads key head ``i // (heads // key_heads)``.
        v: ``[tokens, heads, value_dim]``.
        g: ``[tokens, heads]``, log decays, not positive.
        beta: ``[tokens, heads]``, between 0 and 1.
        cache: ``[num_blocks, heads, value_dim, key_dim]`` of any floating dtype, read and written in place.

    Returns:
        ``[tokens, heads, value_dim]`` in ``v``'s dtype; rows of padding are zeros.
    """
    return _run(_advance_chunk, q, k, v, g, beta, cache, step)


def gated_delta_rule_by_token(*arguments: Any) -> Tensor:
    """Batch-invariant :func:`gated_delta_rule`: results are bit-identical in any batch and for any chunking of the
    prompt. With chunks, they are equal only up to rounding."""
    return _run(_advance_by_token, *arguments)


def _run(
    rule: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    heads_per_key = v.shape[1] // k.shape[1]
    q, k = (_unit(x.float()).repeat_interleave(heads_per_key, 1) for x in (q, k))
    out = torch.zeros_like(v)
    walk(
        rule,
        (q * k.shape[-1] ** -0.5, k, v, g.float(), beta.float()),
        out,
        cache,
        step,
        longest=CHUNK,
        wide=torch.float32,
    )
    return out


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def _advance_by_token(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, one token at a time."""
    decay, beta, v = torch.exp(g)[..., None, None], beta.unsqueeze(3), v.float()
    q, k = q.unsqueeze(3), k.unsqueeze(3)
    outputs = []
    for t in range(v.shape[1]):
        state = decay[:, t] * state
        error = v[:, t] - (state * k[:, t]).sum(-1)
        state = state + (beta[:, t] * error).unsqueeze(3) * k[:, t]
        outputs.append((state * q[:, t]).sum(-1))
    return torch.stack(outputs, 1), state


def _advance_chunk(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens at once, by a linear system (arXiv:2406.06484), because each token's write depends linearly on the
    earlier writes: the writes ``w`` solve ``w[t] + beta[t] * sum_{s<t} decay(s, t) (k[t] k[s]) w[s] = beta[t] * (v[t] -
    decay(t) S k[t])``."""
    if v.shape[1] == 1:
        return _advance_by_token(state, q, k, v, g, beta)
    q, k, v, g, beta = (values.transpose(1, 2) for values in (q, k, v.float(), g, beta.unsqueeze(3)))
    decay = g.cumsum(2)
    between, decayed = decay_between(decay), torch.exp(decay).unsqueeze(3)
    right_hand_side = beta * (v - decayed * (k @ state.mT))
    # ``solve_triangular`` ignores the diagonal and the elements above it.
    system = beta * between * (k @ k.mT)
    written = torch.linalg.solve_triangular(system, right_hand_side, upper=False, unitriangular=True)
    outputs = (between * (q @ k.mT)) @ written + decayed * (q @ state.mT)
    last = decay[:, :, -1:]
    state = torch.exp(last).unsqueeze(3) * state + written.mT @ (torch.exp(last - decay).unsqueeze(3) * k)
    return outputs.transpose(1, 2), state
