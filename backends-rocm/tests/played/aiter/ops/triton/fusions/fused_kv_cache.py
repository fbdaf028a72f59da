"""Of AITER."""

from __future__ import annotations

import torch

from aiter.ops.cache import _store


def fused_qk_rope_reshape_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    pos: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    is_neox: bool,
    flash_layout: bool,
    apply_scale: bool = True,
    offs: torch.Tensor = None,
    q_out: torch.Tensor = None,
    k_out: torch.Tensor = None,
    output_zeros: bool = True,
    zeros_out: torch.Tensor = None,
):
    assert is_neox
    assert flash_layout
    assert cos.shape[-1] == q.shape[-1] // 2
    assert cos.stride() == sin.stride(), "the kernel has the strides of one of them"
    assert key_cache.dtype == torch.bfloat16
    assert len(slot_mapping) <= len(k)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.float().chunk(2, -1)
        c, s = cos[pos].float()[:, None], sin[pos].float()[:, None]
        return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)

    q_out.copy_(turned(q))
    _store(turned(k), key_cache, slot_mapping)
    _store(v, value_cache, slot_mapping)
    return q_out, None, key_cache, value_cache
