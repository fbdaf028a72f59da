"""Token shift of RWKV (arXiv:2404.05892): each token is mixed with the one before it, once for each projection that
reads it. The token before a step's first one is kept in a state.

:func:`token_shift` says what is right, request by request; :func:`token_shift_gathered` finds the tokens before all
others at once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_shift(
    x: Tensor,
    state: Tensor,
    slots: Tensor,
    starts: Tensor,
    fresh: Tensor,
    mix: Tensor,
    inner: Tensor,
    down: Tensor | None,
    up: Tensor,
) -> Tensor:
    """``x + (before - x) * share`` for each branch, where ``before`` is the token before ``x`` in its request.
    Afterwards the state has the last token of each request that has any in this step.

    The share of a branch is ``mix``, and with ``down`` it depends on the token: ``mix + tanh(inner(x) @ down.T) @ up``,
    where ``inner(x) = x + (before - x) * inner``. It is computed in float32, and rounded once.

    Args:
        x: ``[tokens, size]``, the requests' tokens one after the other; those after the last request's are padding,
            whose result is that of a request's first token.
        state: ``[slots, size]``, each slot's last token; changed.
        slots: int64 ``[requests]``, at least one, each another one; -1: padding, a request without tokens.
        starts: int64 ``[requests + 1]``, each request's first token, and the end of the last one.
        fresh: bool ``[requests]``, whether a request starts in this step: what its slot holds is then not read, and
            zeros are before its first token.
        mix: ``[branches, size]``.
        inner: ``[size]``; not read without ``down``.
        down: ``[branches * rank, size]``, or ``None``: shares are ``mix`` for all tokens.
        up: ``[branches, rank, size]``; not read without ``down``.

    Returns:
        ``[branches, tokens, size]`` in ``x``'s dtype.
    """
    before = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    bounds = starts.tolist()
    for request, (slot, is_fresh) in enumerate(zip(slots.tolist(), fresh.tolist(), strict=True)):
        first, end = bounds[request], bounds[request + 1]
        if slot < 0 or first == end:
            continue
        if not is_fresh:
            before[first] = state[slot]
        before[first + 1 : end] = x[first : end - 1]
        state[slot] = x[end - 1]
    return _mixed(x, before, mix, inner, down, up)


def token_shift_gathered(
    x: Tensor,
    state: Tensor,
    slots: Tensor,
    starts: Tensor,
    fresh: Tensor,
    mix: Tensor,
    inner: Tensor,
    down: Tensor | None,
    up: Tensor,
) -> Tensor:
    """:func:`token_shift`, with as many operators for any number of requests."""
    place = torch.arange(x.shape[0], device=x.device)
    begins, ends = starts[:-1], starts[1:]
    used = ((slots >= 0) & (ends > begins)).nonzero().squeeze(1)
    before = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    before[1:] = x[:-1]
    before.masked_fill_((place >= ends[-1])[:, None], 0.0)
    kept = state[slots[used]].masked_fill(fresh[used, None], 0.0)
    before[begins[used]] = kept
    state[slots[used]] = x[ends[used] - 1]
    return _mixed(x, before, mix, inner, down, up)


def _mixed(x: Tensor, before: Tensor, mix: Tensor, inner: Tensor, down: Tensor | None, up: Tensor) -> Tensor:
    """The mixtures of all branches, ``[branches, tokens, size]``."""
    wide = x.float()
    change = before.float() - wide
    shares = mix.float()[:, None]
    if down is not None:
        branches, rank, _ = up.shape
        hidden = torch.tanh((wide + change * inner.float()) @ down.float().T)
        shares = shares + torch.bmm(hidden.unflatten(1, (branches, rank)).transpose(0, 1), up.float())
    return (wide + change * shares).to(x.dtype)
