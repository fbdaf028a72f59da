"""Gated DeltaNet without its projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent.tails import with_accepted
from llmk_triton.recurrent.channels import MANY_REQUESTS, Channels, convolve, one_each
from llmk_triton.recurrent.delta_chunks import delta_chunks
from llmk_triton.recurrent.delta_tokens import delta_tokens
from llmk_triton.recurrent.finish import finish
from llmk_triton.recurrent.kimi_delta_chunks import kimi_delta_chunks

_ALL = 1 << 30
_FEW = 8
"""Most tokens of a request that are computed one by one."""


def gated_delta_net(*arguments: Any, **options: Any) -> Tensor:
    """As ``gated_delta_net`` of :mod:`llmk.reference.recurrent.mixers`: prompts in chunks, in five launches, or in six
    where each element of a key decays by itself; without prompts in two, or for many requests in three."""
    return _mix(*arguments, **options, longest=_FEW)


def gated_delta_net_by_token(*arguments: Any, **options: Any) -> Tensor:
    """As :func:`gated_delta_net`, but token by token, in three launches. Batch-invariant."""
    return _mix(*arguments, **options, longest=_ALL)


def _mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    decay: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    caches: tuple[Tensor, ...],
    step: CacheStep,
    *,
    longest: int,
    gate_activation: str = "silu",
    decay_bound: float | None = None,
) -> Tensor:
    """Requests with more than ``longest`` tokens are computed in chunks."""
    heads, value_dim, key_dim = caches[1].shape[1:]
    rows, row_start, shape, rates = None, step.query_start, v.shape[1:], a.shape[1:]
    if step.tails is not None:
        flat = [x.flatten(1) for x in (q, k, v, a, b)]
        (mixed, a, b), step, rows = with_accepted((torch.cat(flat[:3], 1), *flat[3:]), caches[2:], step)
        q, k, v = mixed.split_with_sizes([x.shape[1] for x in flat[:3]], 1)
        q, k, v = q.unflatten(1, (-1, key_dim)), k.unflatten(1, (-1, key_dim)), v.unflatten(1, shape)
        a, b = a.unflatten(1, rates), b.unflatten(1, shape[:2])
    channels = Channels(v.flatten(2), q, k)
    y = torch.empty(step.num_tokens, heads, value_dim, dtype=v.dtype, device=v.device)
    has_chunks = step.max_query_len > longest
    one_by_one = longest if has_chunks else _ALL
    given, convolution = channels, None
    if has_chunks or step.num_requests >= MANY_REQUESTS or longest == _ALL:
        convolution = convolve(channels, conv_weight, None, caches[0], step)
        given = channels.of(convolution)
    delta_tokens(
        *(given, a, b, conv_weight, decay, dt_bias, caches, step, y),
        longest=one_by_one,
        is_convolved=convolution is not None,
        one=step.max_query_len == 1 and longest != _ALL,
        decay_bound=decay_bound,
    )
    if has_chunks and convolution is not None:
        in_chunks = convolution, a, b, decay, dt_bias, caches[1], step, y
        if a.dim() == 3:
            delta_chunks(*in_chunks, longest=longest)
        else:
            kimi_delta_chunks(*in_chunks, longest=longest, decay_bound=decay_bound)
    y = y if rows is None else y[rows]
    own: dict[str, Any] = {"norm_first": True, "gate_activation": gate_activation}
    own["has_states"] = convolution is None or not one_each(step)
    return finish(y, gate.flatten(2), norm_weight, eps, channels, caches[0], step, row_start, **own).flatten(1)
