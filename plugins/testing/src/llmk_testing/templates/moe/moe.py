"""The MoE kernel: routing, the experts' GEMMs, and the weighted sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.moe import route


def moe(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    top_k: int,
    renormalize: bool,
    activation: str = "silu",
    **routing: Any,
) -> Tensor:
    """``[tokens, hidden]`` to the same, in ``x``'s dtype, accumulated in float32.

    ``router_logits`` are ``[tokens, experts]``; ``weights`` has ``gate_up`` ``[experts, 2 * inner, hidden]``, gate rows
    before up rows, and ``down`` ``[experts, hidden, inner]``. ``routing`` is as in :func:`llmk.reference.moe.route`.
    """
    shares, chosen = route(router_logits, top_k, renormalize=renormalize, **routing)
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(weights["down"].shape[0]):
        tokens, place = (chosen == expert).nonzero(as_tuple=True)
        gate, up = F.linear(x[tokens], weights["gate_up"][expert]).chunk(2, dim=-1)
        made = F.linear(F.silu(gate) * up, weights["down"][expert])
        out.index_add_(0, tokens, made.float() * shares[tokens, place, None])
    return out.to(x.dtype)
