"""Example checkpoints for the conformance kit. Needs transformers, which writes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from llmk.reference.quantize import quantize_int8_channel
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {"hidden_size": 128, "intermediate_size": 224}),
    "experts": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}),
}


def restored(parts: dict[str, Tensor]) -> Tensor:
    """Dequantizes the integers of each output channel."""
    return parts["weight"].float() * parts["weight_scale"].float().view(-1, 1)


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
    ConfigExample(config={}),
    ConfigExample(config={"quant_method": "fp8"}, claimed="quantized"),
)
