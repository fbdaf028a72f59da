"""The gated delta rule (arXiv:2412.06464), in chunks and token by token; decays of each key's elements as in KDA
(arXiv:2510.26692)."""

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
_SHORT = 16
"""Most tokens per chunk where each element of a key decays by itself: their pairs are not a matrix product."""


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

    Where each element of a key decays by itself, ``exp(g)`` multiplies the columns of ``S``. Queries and keys are first
    L2-normalized, and queries divided by the square root of ``key_dim``.

    Args:
        q, k: ``[tokens, key_heads, key_dim]``; head ``i`` reads key head ``i // (heads // key_heads)``.
        v: ``[tokens, heads, value_dim]``.
        g: ``[tokens, heads]`` or ``[tokens, heads, key_dim]``, log decays, not positive.
        beta: ``[tokens, heads]``, between 0 and 1.
        cache: ``[num_blocks, heads, value_dim, key_dim]`` of any floating dtype, read and written in place.

    Returns:
        ``[tokens, heads, value_dim]`` in ``v``'s dtype; rows of padding are zeros.
    """
    rule = _advance_chunk if g.dim() == 2 else _advance_chunk_by_channel
    return _run(rule, q, k, v, g, beta, cache, step)


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
        longest=CHUNK if g.dim() == 2 else _SHORT,
        wide=torch.float32,
    )
    return out


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def _advance_by_token(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, one token at a time."""
    decay = torch.exp(g)[..., None, None] if g.dim() == 3 else torch.exp(g).unsqueeze(3)
    beta, v = beta.unsqueeze(3), v.float()
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


def _advance_chunk_by_channel(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """As :func:`_advance_chunk`, where ``g`` is ``[requests, tokens, heads, key_dim]``: decays are in the sums over
    elements of queries and keys. Each pair's is the exponential of a difference, because those of sums overflow."""
    if v.shape[1] == 1:
        return _advance_by_token(state, q, k, v, g, beta)
    q, k, v, g, beta = (values.transpose(1, 2) for values in (q, k, v.float(), g, beta.unsqueeze(3)))
    decay = g.cumsum(2)
    later = torch.ones(decay.shape[2], decay.shape[2], dtype=torch.bool, device=g.device).triu(1)
    pairs = (decay.unsqueeze(3) - decay.unsqueeze(2)).masked_fill(later[..., None], float("-inf")).exp()
    keyed = pairs * k.unsqueeze(2)  # [requests, heads, t, s, key_dim]
    attended, system = (keyed @ x.unsqueeze(4) for x in (q, k))
    decayed = torch.exp(decay)
    right_hand_side = beta * (v - (decayed * k) @ state.mT)
    written = torch.linalg.solve_triangular(beta * system.squeeze(4), right_hand_side, upper=False, unitriangular=True)
    outputs = attended.squeeze(4) @ written + (decayed * q) @ state.mT
    last = decay[:, :, -1:]
    state = torch.exp(last) * state + written.mT @ (torch.exp(last - decay) * k)
    return outputs.transpose(1, 2), state
