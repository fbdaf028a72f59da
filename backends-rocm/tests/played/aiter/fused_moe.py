"""Of AITER."""

from __future__ import annotations

import torch

from aiter.ops.enum import ActivationType, QuantType
from aiter.ops.shuffle import restored


def _widened(weight: torch.Tensor, scale: torch.Tensor | None, quant_type: QuantType) -> torch.Tensor:
    wide = restored(weight).float()
    if scale is None:
        assert quant_type == QuantType.No
        return wide
    assert scale.dtype == torch.float32
    if quant_type == QuantType.per_128x128:
        scale = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, : wide.shape[1], : wide.shape[2]]
    else:
        assert quant_type == QuantType.per_Token
        assert scale.shape == (*wide.shape[:2], 1)
    return wide * scale


def _quantized(x: torch.Tensor, quant_type: QuantType, dtype: torch.dtype) -> torch.Tensor:
    if quant_type == QuantType.No:
        return x
    rows = x.unflatten(-1, (-1, 128)) if quant_type == QuantType.per_128x128 else x
    scale = (rows.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max).clamp_(min=1e-12)
    return ((rows / scale).to(dtype).float() * scale).view(x.shape)


def fused_moe(
    hidden_states,
    w1,
    w2,
    topk_weight,
    topk_ids,
    expert_mask: torch.Tensor | None = None,
    activation=ActivationType.Silu,
    quant_type=QuantType.No,
    doweight_stage1=False,
    w1_scale: torch.Tensor | None = None,
    w2_scale: torch.Tensor | None = None,
    a1_scale: torch.Tensor | None = None,
    a2_scale: torch.Tensor | None = None,
    block_size_M=None,
    num_local_tokens: torch.Tensor | None = None,
    moe_sorting_dispatch_policy=0,
    dtype=None,
    hidden_pad=0,
    intermediate_pad=0,
    bias1=None,
    bias2=None,
    splitk=0,
):
    assert activation == ActivationType.Silu
    assert (topk_ids.dtype, topk_weight.dtype) == (torch.int32, torch.float32)
    gate_up, down = _widened(w1, w1_scale, quant_type), _widened(w2, w2_scale, quant_type)
    x = _quantized(hidden_states.float(), quant_type, w1.dtype)
    out = torch.zeros_like(x)
    for token, (shares, experts) in enumerate(zip(topk_weight, topk_ids.long().tolist(), strict=True)):
        for share, expert in zip(shares, experts, strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            inner = _quantized((torch.nn.functional.silu(gate) * up)[None], quant_type, w2.dtype)[0]
            out[token] += share * (down[expert] @ inner)
    return out.to(hidden_states.dtype)
