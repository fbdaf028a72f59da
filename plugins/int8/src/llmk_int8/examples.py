"""Example checkpoints for the conformance kit. Needs transformers, which writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.reference.quantize import quantize_int8_channel
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {"hidden_size": 128, "intermediate_size": 224}),
    "experts": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}),
}

_GROUP = 32


def restored(parts: dict[str, Tensor]) -> Tensor:
    """Dequantizes the integers of each output channel."""
    return parts["weight"].float() * parts["weight_scale"].float().view(-1, 1)


def restored_groups(parts: dict[str, Tensor]) -> Tensor:
    """Dequantizes the numbers of each group."""
    packed = parts["weight_packed"]
    numbers = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).float() - 8
    return (numbers.view(len(numbers), -1, _GROUP) * parts["weight_scale"].float()[..., None]).flatten(1)


def stored_groups(weight: Tensor) -> dict[str, Tensor]:
    """What ``llmk_int8.rounding.int4_groups`` says, once more: the value farthest from zero, of two the negative one,
    becomes -8, and the scale is the one with the least squared error, as float16."""
    groups = weight.float().view(-1, _GROUP).T.contiguous()
    farthest = groups.abs().amax(0)
    farthest = torch.where(groups.eq(-farthest).any(0), -farthest, farthest)
    numbers = (groups / torch.where(farthest == 0, 1.0, farthest / -8)).round().clamp(-8, 7)
    scale = (groups * numbers).sum(0) / numbers.square().sum(0).clamp(min=1)
    unsigned = (numbers + 8).to(torch.uint8).T.reshape(len(weight), -1)
    parts = unsigned[:, 0::2] | unsigned[:, 1::2] << 4, scale.half().float().view(len(weight), -1)
    return dict(zip(("weight_packed", "weight_scale"), parts, strict=True))


CONFIGS = (ConfigExample(config={}), ConfigExample(config={"quant_method": "fp8"}, claimed="quantized"))

INT8 = (
    *(
        QuantizationExample(
            name=name,
            model_type=model_type,
            model_config=config,
            stored=quantize_int8_channel,
            restored=restored,
            error=0.02,
        )
        for name, (model_type, config) in MODELS.items()
    ),
    *CONFIGS,
)

INT4 = (
    *(
        QuantizationExample(
            name=name,
            model_type=model_type,
            model_config=config,
            stored=stored_groups,
            restored=restored_groups,
            error=0.2,
            logits_error=0.6,  # as other methods of 4 bits
        )
        for name, (model_type, config) in MODELS.items()
    ),
    *CONFIGS,
)
