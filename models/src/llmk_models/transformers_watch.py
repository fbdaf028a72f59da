"""Observes the attention of a transformers model through its attention interface, while two tokens run.

The library registers attention and mask functions by name; the one registered here returns zeros and records its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from llmk.api import AttentionFacts, CheckpointError

WATCH = "llmk_watch"
_FAR = 1 << 20
"""A position beyond every sliding window."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The arguments that one layer passed to the attention interface. ``window`` and ``causal`` are its mask
    function's."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    causal: bool
    softcap: float | None
    sinks: bool


_ASPECTS = {
    "num_heads": "query heads",
    "num_kv_heads": "key-value heads",
    "head_dim": "size of keys",
    "value_dim": "size of values",
    "window": "sliding window",
    "softcap": "soft cap",
    "sinks": "attention sinks",
}
"""The properties of a layer's attention that must match, with their descriptions; its scale is made to."""


def check_observed(layer: int, observed: Observed, facts: AttentionFacts) -> None:
    """Raises :class:`~llmk.api.CheckpointError` if a layer's attention differs from the planned one."""
    planned = Observed(
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        value_dim=facts.value_dim or facts.head_dim,
        scale=observed.scale,
        window=facts.sliding_window,
        causal=True,
        softcap=facts.softcap,
        sinks=facts.sinks,
    )
    wrong = [
        f"{_ASPECTS[name]} {getattr(observed, name)}, not {getattr(planned, name)}"
        for name in _ASPECTS
        if getattr(observed, name) != getattr(planned, name)
    ]
    if not observed.causal:
        wrong = ["its attention is not causal: tokens see later ones, or the mask is the module's own", *wrong]
    if wrong:
        raise CheckpointError(
            f"layer {layer} of transformers' model has other attention than config.json describes: {'; '.join(wrong)}",
            hint="install a wheel that implements the architecture natively",
        )


class _WatchedMask(Tensor):
    """A mask of the right shape, with the window of its mask function."""

    window: int | None
    causal: bool


def watch_mask(q_length: int, kv_length: int, mask_function: Callable[..., Any], **_: Any) -> Tensor:
    """Creates a mask by evaluating its function only at selected positions."""
    zero, far = torch.tensor(0), torch.tensor(_FAR)

    def allows(query: Tensor, key: Tensor) -> bool:
        return bool(mask_function(zero, zero, query, key))

    mask = torch.zeros(1, 1, q_length, kv_length, dtype=torch.bool).as_subclass(_WatchedMask)
    mask.causal = not allows(far, far + 1)
    mask.window = None
    if not allows(far, zero):
        low, high = 0, _FAR
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if allows(far, far - middle) else (low, middle)
        mask.window = high
    return mask


def watch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Records the layer's arguments in ``module.llmk_observed``; returns zeros ``[1, tokens, heads, value_dim]``."""
    module.llmk_observed = Observed(  # type: ignore[assignment]
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        scale=query.shape[3] ** -0.5 if scaling is None else float(scaling),
        window=getattr(attention_mask, "window", None),
        causal=getattr(attention_mask, "causal", False),
        softcap=softcap,
        sinks=s_aux is not None,
    )
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(WATCH, watch_attention)
AttentionMaskInterface.register(WATCH, watch_mask)
