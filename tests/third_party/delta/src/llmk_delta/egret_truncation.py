"""Top-k, top-p and min-p without sorting: the least logit to keep is found by bisection over the bits of floats.

A logit less its row's greatest one is at most 0, so the bits of its magnitude, read as an integer, are in the order of
likelihood: 0 is the most likely token, and the bits of infinity are a token that is ruled out. The least such *key*
whose tokens are enough, by number or by probability, is found in one step for each of its 31 bits, for all rows at
once.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 31
_RULED_OUT = 0x7F800000
"""The bits of infinity."""

_UNIT = 1 << 24
"""The weight of the most likely token. Weights are whole, so that sums don't depend on the order of addition."""


def mask_by_bisection(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """:func:`llmk.reference.sampling.sample.mask_top_k_top_p_min_p`, in two comparisons with all logits for each bit.

    Args:
        logits: float32 ``[R, V]``; not changed.
        top_k: int64 ``[R]``; 0: off.
        top_p: float32 ``[R]``; 1: off.
        min_p: float32 ``[R]``; 0: off.

    Returns:
        A new float32 ``[R, V]``, in which the tokens that are left out are ``-inf``.
    """
    vocab = logits.shape[1]
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    keys = shifted.abs().view(torch.int32)
    last = torch.full(logits.shape[:1], _RULED_OUT, dtype=torch.int32, device=logits.device)
    wanted = None
    if top_k is not None:
        wanted = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
        last = _least_key(_Count(keys), wanted)
    if top_p is not None:
        mass = _Mass(keys, shifted)
        goal = (top_p * mass.of_kept(last, wanted)).ceil().to(torch.int64)
        nucleus = _least_key(mass, goal)
        last = torch.where(top_p < 1, torch.minimum(last, nucleus), last)
    floor = -last.view(torch.float32)
    if min_p is not None:
        floor = torch.maximum(floor, min_p.log())
    return logits.masked_fill(shifted < floor[:, None], float("-inf"))


class _Count:
    """How many tokens of each row have at most some key. It has one buffer for all steps."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self._chosen = torch.empty(keys.shape, dtype=torch.bool, device=keys.device)

    def up_to(self, key: Tensor) -> Tensor:
        """int64 ``[R]``, of ``key`` int32 ``[R]``."""
        return torch.le(self.keys, key[:, None], out=self._chosen).sum(dim=-1)


class _Mass:
    """The sum of the weights of the tokens of each row that have at most some key."""

    def __init__(self, keys: Tensor, shifted: Tensor) -> None:
        self._count = _Count(keys)
        self._weights = shifted.exp().mul_(_UNIT).round_().to(torch.int64)
        self._chosen = torch.empty_like(self._weights)

    def up_to(self, key: Tensor) -> Tensor:
        """int64 ``[R]``, of ``key`` int32 ``[R]``."""
        chosen = torch.le(self._count.keys, key[:, None], out=self._chosen)
        return chosen.mul_(self._weights).sum(dim=-1)

    def of_kept(self, last: Tensor, wanted: Tensor | None) -> Tensor:
        """The weight of the ``wanted`` most likely tokens, of which the last has the key ``last``; ``None``: of all.

        Tokens that are as likely as the last are kept too, but those beyond the wanted ones add nothing to it.
        """
        mass = self.up_to(last)
        if wanted is None:
            return mass
        surplus = self._count.up_to(last) - wanted
        weight_of_last = (-last.view(torch.float32)).exp().mul_(_UNIT).round_().to(torch.int64)
        return mass - surplus * weight_of_last


def _least_key(amount: _Count | _Mass, goal: Tensor) -> Tensor:
    """The least key, int32 ``[R]``, up to which there is as much as ``goal`` (int64 ``[R]``); that of tokens that are
    ruled out, where there never is."""
    key = torch.zeros(goal.shape, dtype=torch.int32, device=goal.device)
    for bit in reversed(range(_BITS)):
        middle = key + ((1 << bit) - 1)
        key = torch.where(amount.up_to(middle) < goal, middle + 1, key)
    return key.clamp_(max=_RULED_OUT)
