"""The selective scan of Mamba-2 (state space duality, arXiv:2405.21060), in chunks and token by token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.pointwise import softplus
from llmk.reference.recurrent.chunk import CHUNK, decay_between
from llmk.reference.recurrent.walk import walk


def state_space_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float | None],
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    """The selective scan of each head's inputs, in float32: ``S = exp(dt * a) * S + dt * x b^T``, ``y = S c + d * x``.

    Args:
        x: ``[tokens, heads, head_dim]``.
        dt: ``[tokens, heads]``; the step size is ``softplus(dt + dt_bias)``, clamped to ``dt_limits`` (``None``:
            unbounded).
        a, d, dt_bias: ``[heads]``; ``a`` is negative.
        b, c: ``[tokens, groups, state_size]``; head ``i`` reads group ``i // (heads // groups)``.
        cache: ``[num_blocks, heads, head_dim, state_size]`` of any floating dtype, read and written in place.

    Returns:
        ``[tokens, heads, head_dim]`` in ``x``'s dtype; rows of padding are zeros.
    """
    return _run(_advance_chunk, x, dt, a, b, c, d, dt_bias, dt_limits, cache, step)


def state_space_scan_by_token(*arguments: Any) -> Tensor:
    """Batch-invariant :func:`state_space_scan`: results are bit-identical in any batch and for any chunking of the
    prompt. With chunks, they are equal only up to rounding."""
    return _run(_advance_by_token, *arguments)


def _run(
    rule: Callable[..., tuple[Tensor, Tensor]],
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float | None],
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    dt = softplus(dt.float() + dt_bias.float()).clamp(*dt_limits)
    out = torch.zeros_like(x)
    walk(partial(rule, a.float(), d.float()), (x, dt, b, c), out, cache, step, longest=CHUNK, wide=torch.float32)
    return out


def _advance_by_token(
    a: Tensor, d: Tensor, state: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence, one token at a time."""
    x, heads_per_group = x.float(), x.shape[2] // b.shape[2]
    b, c = (values.float().repeat_interleave(heads_per_group, 2).unsqueeze(3) for values in (b, c))
    decay = torch.exp(dt * a)[..., None, None]
    scaled_inputs = (dt.unsqueeze(3) * x).unsqueeze(4)
    outputs = []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + scaled_inputs[:, t] * b[:, t]
        outputs.append((state * c[:, t]).sum(-1))
    return torch.stack(outputs, 1) + d.unsqueeze(1) * x, state


def _advance_chunk(
    a: Tensor, d: Tensor, state: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """All tokens at once: the sum of each token's output for the state before the chunk and for the tokens up to its
    own."""
    if x.shape[1] == 1:
        return _advance_by_token(a, d, state, x, dt, b, c)
    x, dt, b, c = (values.float().transpose(1, 2) for values in (x, dt, b, c))
    heads_per_group = x.shape[1] // b.shape[1]
    scores = (c @ b.mT).repeat_interleave(heads_per_group, 1)
    b, c = (values.repeat_interleave(heads_per_group, 1) for values in (b, c))
    decay = (dt * a.unsqueeze(1)).cumsum(2)
    scaled_inputs = dt.unsqueeze(3) * x
    outputs = (scores * decay_between(decay)) @ scaled_inputs + torch.exp(decay).unsqueeze(3) * (c @ state.mT)
    last = decay[:, :, -1:]
    state = torch.exp(last).unsqueeze(3) * state + (torch.exp(last - decay).unsqueeze(3) * scaled_inputs).mT @ b
    return (outputs + d[:, None, None] * x).transpose(1, 2), state
