"""Example checkpoints for the conformance kit. Needs transformers, which writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk_int8.rounding import GROUP, int4_groups, int8_rows
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {"hidden_size": 128, "intermediate_size": 224}),
    "experts": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}),
}


def restored(parts: dict[str, Tensor]) -> Tensor:
    """Dequantizes the integers of each output channel."""
    return parts["weight"].float() * parts["weight_scale"].float().view(-1, 1)


def restored_groups(parts: dict[str, Tensor]) -> Tensor:
    """Dequantizes the numbers of each group."""
    packed = parts["weight_packed"]
    numbers = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).float() - 8
    return (numbers.view(len(numbers), -1, GROUP) * parts["weight_scale"].float()[..., None]).flatten(1)


CONFIGS = (ConfigExample(config={}), ConfigExample(config={"quant_method": "fp8"}, claimed="quantized"))

INT8 = (
    *(
        QuantizationExample(
            name=name,
            model_type=model_type,
            model_config=config,
            stored=int8_rows,
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
            stored=int4_groups,
            restored=restored_groups,
            error=0.2,
            logits_error=0.6,  # as other methods of 4 bits
        )
        for name, (model_type, config) in MODELS.items()
    ),
    *CONFIGS,
)
