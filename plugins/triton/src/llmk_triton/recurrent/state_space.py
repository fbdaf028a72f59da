"""Mamba-2's layer without its projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent.tails import with_accepted
from llmk_triton.recurrent.channels import MANY_REQUESTS, Channels, convolve, one_each
from llmk_triton.recurrent.finish import finish
from llmk_triton.recurrent.state_space_chunks import scan_chunks
from llmk_triton.recurrent.state_space_tokens import scan_tokens

_ALL = 1 << 30
_FEW = 8
"""Most tokens of a request that are computed one by one."""


def state_space_mixer(*arguments: Any, **options: Any) -> Tensor:
    """As ``state_space_mixer`` of :mod:`llmk.reference.recurrent.mixers`: prompts in chunks, in four launches; without
    prompts in two, or for many requests in three."""
    return _mix(*arguments, longest=_FEW, **options)


def state_space_mixer_by_token(*arguments: Any, **options: Any) -> Tensor:
    """As :func:`state_space_mixer`, but token by token, in three launches. Batch-invariant."""
    return _mix(*arguments, longest=_ALL, **options)


def _mix(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float | None],
    norm_weight: Tensor | None,
    eps: float,
    caches: tuple[Tensor, ...],
    step: CacheStep,
    *,
    longest: int,
    gating: str = "gate_first",
) -> Tensor:
    """Requests with more than ``longest`` tokens are computed in chunks. What goes token by token alone has one kernel
    for all steps, so that results don't depend on what else a step computes."""
    _, heads, head_dim, size = caches[1].shape
    inner, num_channels = heads * head_dim, conv_weight.shape[0]
    gate, mixed, dt = projected.split_with_sizes((inner, num_channels, heads), 1)
    rows, row_start = None, step.query_start
    if step.tails is not None:
        (mixed, dt), step, rows = with_accepted((mixed, dt), caches[2:], step)
    y = torch.empty(step.num_tokens, inner, dtype=projected.dtype, device=projected.device)
    scanned, channels = (a, d, dt_bias, dt_limits), Channels(mixed.unsqueeze(1))
    has_chunks = step.max_query_len > longest
    one_by_one = longest if has_chunks else _ALL
    if is_convolved := has_chunks or step.num_requests >= MANY_REQUESTS or longest == _ALL:
        mixed = convolve(channels, conv_weight, conv_bias, caches[0], step)
    given = (mixed, dt, conv_weight, conv_bias, *scanned)
    one = step.max_query_len == 1 and longest != _ALL
    scan_tokens(*given, caches, step, y, longest=one_by_one, is_convolved=is_convolved, one=one)
    if has_chunks:
        scan_chunks(mixed, dt, *scanned, caches[1], step, y, longest=longest)
    y = y if rows is None else y[rows]
    norms = (num_channels - inner) // (2 * size)
    out = finish(
        y.unflatten(1, (norms, -1)), gate.unsqueeze(1), norm_weight, eps, channels, caches[0],
        step, row_start, has_states=not (is_convolved and one_each(step)), norm_first=gating == "norm_first",
    )  # fmt: skip
    return out.flatten(1)
